"""Reads records for the pages."""
