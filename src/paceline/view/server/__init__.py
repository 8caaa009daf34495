"""The web app: addresses, access, and the one-file report."""
