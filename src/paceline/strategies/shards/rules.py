"""What becomes of torch's functions that meet sharded tensors in a script: outside of a model's call.

A function that works element by element runs on each worker's part, and its result stays sharded. A sum or a norm
becomes a plain number. For anything else the tensors are gathered, the function runs on whole plain tensors on every
worker, and what it changed in place is written back. So results do not depend on what is known here; only cost does.

Every worker calls the same functions in the same order. The rules hold for every DTensor of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.agreement.updates import Operands
from paceline.comm.group import Group
from paceline.script import tree
from paceline.script.patches import all_of, patch
from paceline.script.rows import crossings
from paceline.script.rows.crossings import HALF
from paceline.spread.dtensors import (
    cuts_of,
    is_laid_like,
    like,
    local_of,
    part_like,
    part_of,
    split_like,
    summed,
    whole_of,
)
from paceline.spread.functions import (
    ELEMENTWISE,
    FACTS,
    attribute_of,
    fitting,
    is_in_place,
    is_torchs_own,
    name_of,
    norms,
    of_lists,
    patch_dtensors,
    root_of,
)
from paceline.spread.write_back import LentCopies
from paceline.torch_private import no_torch_function


class Beside(NamedTuple):
    """How DTensors behave that do not lie on the axis shard: layers and activations of a model's call that are split
    over another axis."""

    answer: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
    whole: Callable[[Any], torch.Tensor]


class Rules:
    """The rules of one worker. `rows`: the workers that share the rows of a sliced call. `inside`: whether such a call
    is running. `rebound(parameter)`: the memory of this parameter was replaced (`p.data = …`)."""

    def __init__(
        self,
        rows: Group,
        inside: Callable[[], bool],
        rebound: Callable[[DTensor], None],
        beside: Beside | None = None,
        *,
        watches: bool = True,
    ) -> None:
        """`watches`: notes what the script puts into sharded tensors; otherwise another part of the strategy does."""
        self._watches = watches
        self._rows, self._inside, self._rebound, self._beside = rows, inside, rebound, beside
        self.operands = Operands(DTensor)
        # Gathered copies: what the script writes into views of them is written back to the parts.
        self._copies = LentCopies((DTensor,), self.whole, self._keep, part_of)

    def install(self) -> Callable[[], None]:
        plain_apply = vars(torch.autograd.Function)["apply"]  # a classmethod, of Python or of C

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not cls.__module__.startswith(("torch.distributed.", "paceline.")):
                args = tuple(self._lent(one) if isinstance(one, DTensor) else one for one in args)
            return plain_apply.__get__(None, cls)(*args, **kwargs)

        functions = patch(torch.autograd.Function, "apply", classmethod(apply))  # asks no class of tensors
        return all_of([functions, patch_dtensors(self.apply, self.whole)])

    def whole(self, tensor: DTensor) -> torch.Tensor:
        """The whole tensor, plain. In a sliced call each worker computes a part of its gradient; outside, all of it."""
        if self._beside is not None and not _lies_on_shard(tensor):
            return self._beside.whole(tensor)
        self.write_back()
        whole = whole_of(tensor)
        return crossings.share(whole, self._rows) if self._inside() else whole

    def _lent(self, tensor: DTensor) -> torch.Tensor:
        """The whole tensor for a function of the script, whose backward may ask for the parameter's gradient."""
        whole: Any = self.whole(tensor)
        whole._paceline_held = getattr(tensor, "_paceline_held", None)
        lent: torch.Tensor = whole
        return lent

    def apply(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls one of torch's functions, whose arguments contain sharded tensors."""
        if is_torchs_own(sys._getframe(2)):
            with no_torch_function():
                return func(*args, **kwargs)
        if self._beside is not None:
            lie = [_lies_on_shard(leaf) for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, DTensor)]
            if not any(lie):
                return self._beside.answer(func, types, args, kwargs)
            if not all(lie):
                args, kwargs = tree.replace((args, kwargs), self._none_beside)
        self.write_back()
        name = name_of(func)
        if name in ("__get__", "__set__", "__delete__"):
            return self._property(func, name, args)
        if name == "__deepcopy__":
            return _copied(*args)
        if name in FACTS or (name == "type" and len(args) + len(kwargs) == 1):
            with no_torch_function():
                return func(*args, **kwargs)
        in_place = is_in_place(name)
        found = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        learns = torch.is_grad_enabled() and any(_requires_grad(tensor) for tensor in found)
        if name.startswith(("_foreach_", "_fused_")):
            self._note(args, kwargs)
            return of_lists(func, name, args, kwargs, self.whole, self._copies)
        if "out" not in kwargs and _fit(found):
            first = next(tensor for tensor in found if isinstance(tensor, DTensor))
            aim = args[0] if args else None
            alone = len(found) == 1 and len(args) == 1 and not kwargs and first.dtype not in HALF
            if root_of(name) in (*ELEMENTWISE, "detach", "conj"):
                self._note(args, kwargs)
                given, named = tree.replace((args, kwargs), lambda leaf: self._own(leaf, first))
                if in_place and not learns and isinstance(aim, DTensor):
                    func(*given, **named)
                    return aim
                if not in_place and all(isinstance(one, DTensor) or not one.dim() for one in found):
                    result = func(*given, **named)
                    if isinstance(result, torch.Tensor) and result.device == part_of(first).device:
                        return like(result, first)
            elif alone and name == "sum":
                total = local_of(first).sum()
                for _, axis, _ in cuts_of(first):
                    total = summed(total, axis)
                return crossings.share(total, self._rows) if self._inside() else total
            elif alone and name in ("norm", "vector_norm") and not learns:
                return norms([func(part_of(first).detach())], [first], 2)[0]
        aims = [leaf for leaf in tree.leaves(args[:1]) if isinstance(leaf, DTensor)] if in_place else []
        return self._copies.on_wholes(func, args, kwargs, aims)

    def _none_beside(self, leaf: Any) -> Any:
        return leaf if not isinstance(leaf, DTensor) or _lies_on_shard(leaf) else self.whole(leaf)

    def _note(self, *given: Any) -> None:
        """What goes into sharded tensors must be equal on all workers; inside a sliced call it is of own rows."""
        if self._watches and not self._inside():
            self.operands.note(given)

    # -- ways to call ----------------------------------------------------------------------------------------------

    def _property(self, func: Any, name: str, args: tuple[Any, ...]) -> Any:
        what = attribute_of(func.__self__)
        if name == "__set__" and isinstance(args[0], DTensor) and isinstance(args[1], torch.Tensor):
            self._note(args[1])
            given = args[1] if isinstance(args[1], DTensor) else split_like(args[1], args[0])
            if what == "data":
                args[0]._local_tensor = part_of(given).detach()
                self._rebound(args[0])
                return None
            args = (args[0], given)
        elif name == "__set__" and isinstance(args[1], DTensor):
            args = (args[0], self.whole(args[1]))
        with no_torch_function():
            return func(*args)

    def _own(self, value: Any, like: DTensor) -> Any:
        """What a function of this worker's part needs of a value, with its graph."""
        same = isinstance(value, DTensor) and is_laid_like(value, like)
        return local_of(value) if same else fitting(value, like, self.whole)

    # -- writing back ----------------------------------------------------------------------------------------------

    def write_back(self, *, arrays: bool = False) -> None:
        """Brings what the script wrote into views of copies to the parts; with `arrays`, also through NumPy."""
        self._copies.write_back(arrays=arrays)

    def _keep(self, tensor: DTensor, whole: torch.Tensor) -> None:
        self._note(whole)
        with torch.no_grad():
            part_of(tensor).copy_(part_like(whole.detach(), tensor))


def _copied(tensor: DTensor, memo: dict[int, Any]) -> Any:
    """A copy that is split in the same way, without what torch keeps about a mesh, of which there is no copy."""
    if id(tensor) not in memo:
        with no_torch_function():
            if not tensor.is_leaf:
                raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
            made: Any = like(part_of(tensor).detach().clone(), tensor).requires_grad_(tensor.requires_grad)
            made._is_param = isinstance(tensor, nn.Parameter)
            made.grad = None if tensor.grad is None else _copied(cast(DTensor, tensor.grad), memo)
        memo[id(tensor)] = made
    return memo[id(tensor)]


def _lies_on_shard(tensor: DTensor) -> bool:
    with no_torch_function():
        return "shard" in (tensor.device_mesh.mesh_dim_names or ())


def _requires_grad(tensor: torch.Tensor) -> bool:
    with no_torch_function():
        return tensor.requires_grad


def _fit(tensors: list[torch.Tensor]) -> bool:
    """Whether an elementwise function on parts gives parts: all tensors have one shape, or are numbers; and the sharded
    ones are cut, not parts of a sum."""
    with no_torch_function():
        cut = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
        shapes = {tensor.shape for tensor in tensors if tensor.dim()}
        return len(shapes) == 1 and bool(cut) and all(tensor.dim() and cuts_of(tensor) for tensor in cut)
