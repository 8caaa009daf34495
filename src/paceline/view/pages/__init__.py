"""One file a page: a record in, blocks out. What blocks look like is the templates' business."""
