"""The strategy `mesh`, and its parts: layout text, names of dimensions, parameters that lie on several workers."""
