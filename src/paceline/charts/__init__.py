"""Charts: one description (`chart`) and two renderers, an SVG file (`svg`) and a page (`browser`); `words` says it."""
