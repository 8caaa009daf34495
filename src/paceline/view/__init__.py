"""The web app over a folder of records: pages, and the one-file report. Reads records; never writes to them."""
