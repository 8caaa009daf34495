"""One description of a chart (`chart`), drawn in two ways: as an SVG (`svg`) and in the browser (`browser`)."""
