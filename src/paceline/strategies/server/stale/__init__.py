"""Stale gradients on a server: how they are corrected, and what that needs."""
