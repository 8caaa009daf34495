"""`Rows` with the functions that have rules of their own: importing them fills the table `tensor.KNOWN`."""

from paceline.script.rows import elementwise, gradients, moves, reductions, shapes
from paceline.script.rows.tensor import Rows

__all__ = ["Rows", "elementwise", "gradients", "moves", "reductions", "shapes"]
