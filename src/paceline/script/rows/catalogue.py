"""`Rows` with all functions that are known to work on own rows: importing them fills the table `tensor.KNOWN`."""

from paceline.script.rows import elementwise, gradients, losses, reductions, shapes
from paceline.script.rows.tensor import Rows

__all__ = ["Rows", "elementwise", "gradients", "losses", "reductions", "shapes"]
