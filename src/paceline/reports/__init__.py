"""What a verb reports, declared once; and its renderers."""
