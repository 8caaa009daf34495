"""Charts: one description (`chart`) and two renderers, an SVG file (`svg`) and plotly.js in a browser (`browser`)."""
