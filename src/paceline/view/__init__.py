"""The web app for a folder of records, and the single-file report. Reads records and never writes to them."""
