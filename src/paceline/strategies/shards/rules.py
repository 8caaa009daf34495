"""What becomes of torch's functions that meet sharded tensors in a script: outside of a model's call.

A function that works element by element runs on each worker's part, and its result stays sharded. A sum or a norm
becomes a plain number. For anything else the tensors are gathered, the function runs on whole plain tensors on every
worker, and what it changed in place is written back. So results do not depend on what is known here; only cost does.

Every worker calls the same functions in the same order. The rules hold for every DTensor of the process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from paceline.agreement.updates import Operands
from paceline.comm.group import Group
from paceline.script.patches import all_of, patch
from paceline.script.rows import crossings
from paceline.spread import names
from paceline.spread.write_back import LentCopies, state_of_part
from paceline.strategies.shards.parts import (
    as_local,
    as_shard,
    cut,
    dim_of,
    local_of,
    own_part,
    sharded,
    sum_of_parts,
    whole_of,
)
from paceline.torch_private import no_torch_function


class Rules:
    """The rules of one worker. `group`: the workers that hold the parts of a tensor. `rows`: the workers that share the
    rows of a sliced call. `inside`: whether a sliced call is running. `rebound(parameter)`: the memory of this
    parameter was replaced (`p.data = …`)."""

    def __init__(
        self, group: Group, rows: Group, inside: Callable[[], bool], rebound: Callable[[DTensor], None]
    ) -> None:
        self.group, self._rows, self._inside, self._rebound = group, rows, inside, rebound
        self.operands = Operands(DTensor)
        # Gathered copies: what the script writes into views of them is written back to the parts.
        self._copies = LentCopies(self._keep, lambda tensor: state_of_part(local_of(tensor)))

    def install(self) -> Callable[[], None]:
        rules = self

        def __torch_function__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if _is_torchs_own(sys._getframe(1)):
                with no_torch_function():
                    return func(*args, **(kwargs or {}))
            return rules.apply(func, args, kwargs or {})

        def __repr__(self: DTensor, *, tensor_contents: Any = None) -> str:
            whole = rules.whole(self)
            return repr(
                torch.nn.Parameter(whole, self.requires_grad) if isinstance(self, torch.nn.Parameter) else whole
            )

        plain_apply = vars(torch.autograd.Function)["apply"]  # a classmethod, of Python or of C

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if not cls.__module__.startswith(("torch.distributed.", __package__)):
                args = tuple(rules._lent(one) if isinstance(one, DTensor) else one for one in args)
            return plain_apply.__get__(None, cls)(*args, **kwargs)

        return all_of(
            [
                patch(torch.autograd.Function, "apply", classmethod(apply)),  # asks no class of tensors
                patch(DTensor, "__torch_function__", classmethod(__torch_function__)),
                patch(DTensor, "__repr__", __repr__),
            ]
        )

    def whole(self, tensor: DTensor) -> torch.Tensor:
        self.write_back()
        return whole_of(tensor, self.group, self._rows if self._inside() else None)

    def _lent(self, tensor: DTensor) -> torch.Tensor:
        """The whole tensor for a function of the script, whose backward may ask for the parameter's gradient."""
        whole: Any = self.whole(tensor)
        whole._paceline_held = getattr(tensor, "_paceline_held", None)
        lent: torch.Tensor = whole
        return lent

    def apply(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls one of torch's functions, whose arguments contain sharded tensors."""
        self.write_back()
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", "__delete__"):
            return self._property(func, name, args)
        if name in names.KEPT or (name in names.ASKED and len(args) + len(kwargs) == 1):
            with no_torch_function():
                return func(*args, **kwargs)
        found = _tensors((args, kwargs))
        learns = torch.is_grad_enabled() and any(_requires_grad(tensor) for tensor in found)
        if name.startswith(("_foreach_", "_fused_")):
            return self._each(func, name, args, kwargs) if not learns else self._on_wholes(func, name, args, kwargs)
        if "out" in kwargs:
            return self._on_wholes(func, name, args, kwargs)
        if names.root_of(name) in names.ELEMENTWISE and _fit(found):
            first = next(tensor for tensor in found if isinstance(tensor, DTensor))
            aim = args[0] if args else None
            self._note(args, kwargs)
            if names.is_in_place(name) and not learns and isinstance(aim, DTensor):
                func(*self._locals(args, first), **self._locals(kwargs, first))
                return aim
            if not names.is_in_place(name) and all(isinstance(one, DTensor) or not one.dim() for one in found):
                result = func(*self._locals(args, first), **self._locals(kwargs, first))
                if isinstance(result, torch.Tensor) and result.device == local_of(first).device:
                    return as_shard(result, first)
        if len(found) == 1 and len(args) == 1 and not kwargs and _fit(found):
            if name == "sum":
                return self._sum(args[0])
            if name in ("norm", "vector_norm") and not learns:
                own = local_of(args[0]).detach()
                return self._norms([func(own)], [own], 2)[0]
        return self._on_wholes(func, name, args, kwargs)

    def _note(self, *given: Any) -> None:
        """What goes into sharded tensors must be equal on all workers; inside a sliced call it is of own rows."""
        if not self._inside():
            self.operands.note(given)

    # -- ways to call ----------------------------------------------------------------------------------------------

    def _property(self, func: Any, name: str, args: tuple[Any, ...]) -> Any:
        owner = getattr(func, "__self__", None)
        what = getattr(owner, "__name__", "")
        if name == "__set__" and isinstance(args[0], DTensor) and isinstance(args[1], torch.Tensor):
            self._note(args[1])
            given = args[1] if isinstance(args[1], DTensor) else cut(args[1], args[0], self.group)
            if what == "data":
                args[0]._local_tensor = local_of(given).detach()
                self._rebound(args[0])
                return None
            args = (args[0], given)
        elif name == "__set__" and isinstance(args[1], DTensor):
            args = (args[0], self.whole(args[1]))
        with no_torch_function():
            return func(*args)

    def _locals(self, value: Any, like: DTensor) -> Any:
        if isinstance(value, DTensor):
            same = dim_of(value) == dim_of(like)
            return as_local(value) if same else own_part(self.whole(value), like, self.group)
        if isinstance(value, torch.Tensor):
            return value if not value.dim() else own_part(value, like, self.group)
        return _rebuilt(value, functools.partial(self._locals, like=like))

    def _each(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of lists of tensors. Lists may hold sharded and plain tensors: each kind in a call of its own."""
        if name == "_foreach_max":
            return self._on_wholes(func, name, args, kwargs)
        self._note(args, kwargs)
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
        length = len(args[0])
        cuts = {
            i: next(one[i] for one in lists if len(one) == length and isinstance(one[i], DTensor))
            for i in range(length)
            if any(len(one) == length and isinstance(one[i], DTensor) for one in lists)
        }
        results: list[Any] = [None] * length
        for kind in (list(cuts), [i for i in range(length) if i not in cuts]):
            if not kind:
                continue

            def pick(value: Any, kind: list[int] = kind) -> Any:
                if isinstance(value, (list, tuple)) and len(value) == length:
                    return [self._locals(value[i], cuts[i]) if i in cuts else value[i] for i in kind]
                return value

            found = func(*map(pick, args), **{key: pick(value) for key, value in kwargs.items()})
            if found is None:
                continue
            if name == "_foreach_norm" and kind[0] in cuts:
                order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
                found = self._norms(found, [local_of(cuts[i]) for i in kind], order)
            else:
                found = [sharded(one, cuts[i]) if i in cuts else one for i, one in zip(kind, found, strict=True)]
            for i, one in zip(kind, found, strict=True):
                results[i] = one
        return None if names.is_in_place(name) else results

    def _sum(self, tensor: DTensor) -> torch.Tensor:
        """The sum of all elements: equal on all workers, and plain."""
        total = sum_of_parts(as_local(tensor).sum(), self.group)
        return crossings.share(total, self._rows) if self._inside() else total

    def _norms(self, own: list[torch.Tensor], parts: list[torch.Tensor], order: Any) -> list[torch.Tensor]:
        """Norms of whole tensors from the norms of the parts, in one message."""
        mine = torch.stack([n if part.numel() else torch.zeros_like(n) for n, part in zip(own, parts, strict=True)])
        all_of_them = self.group.gather_rows(mine.view(1, -1), 0, [1] * self.group.world, "the norms of shards")
        return list(torch.linalg.vector_norm(all_of_them, order, dim=0).unbind())

    def _on_wholes(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gathers the tensors, calls the function, and writes back what it has changed."""
        gathered: list[tuple[DTensor, torch.Tensor, int]] = []

        def gather(value: Any) -> Any:
            if isinstance(value, DTensor):
                whole = next((w for tensor, w, _ in gathered if tensor is value), None)
                if whole is None:
                    whole = self._copies.known(value, self.whole(value))
                    gathered.append((value, whole, _version(whole)))
                return whole
            return _rebuilt(value, gather)

        result = func(*gather(args), **gather(kwargs))
        aims = _tensors(args[:1]) if names.is_in_place(name) else []  # not every function of lists counts versions
        for tensor, whole, version in gathered:
            if _version(whole) != version or any(aim is tensor for aim in aims):
                self._copies.keep(tensor, whole)
                if result is whole:
                    return tensor
            elif not whole.requires_grad:
                self._copies.remember(tensor, whole, result)
        return result

    # -- writing back ----------------------------------------------------------------------------------------------

    def write_back(self, *, arrays: bool = False) -> None:
        """Brings what the script wrote into views of copies to the parts; with `arrays`, also through NumPy."""
        self._copies.write_back(arrays=arrays)

    def _keep(self, tensor: DTensor, whole: torch.Tensor) -> None:
        self._note(whole)
        with torch.no_grad():
            local_of(tensor).copy_(own_part(whole.detach(), tensor, self.group))


def _is_torchs_own(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("torch.distributed.")


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _requires_grad(tensor: torch.Tensor) -> bool:
    with no_torch_function():
        return tensor.requires_grad


def _fit(tensors: list[torch.Tensor]) -> bool:
    """Whether an elementwise function on parts gives parts: all tensors have one shape, or are numbers; and the sharded
    ones are cut, not parts of a sum."""
    with no_torch_function():
        cut = [tensor for tensor in tensors if isinstance(tensor, DTensor)]
        shapes = {tensor.shape for tensor in tensors if tensor.dim()}
        return len(shapes) == 1 and all(tensor.dim() and dim_of(tensor) is not None for tensor in cut)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [found for one in value.values() for found in _tensors(one)]
    return [found for one in value for found in _tensors(one)] if isinstance(value, (list, tuple)) else []


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(one) for one in value)
    return value
