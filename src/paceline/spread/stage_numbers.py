"""Single numbers that one stage has computed (a norm, a penalty), sent to all workers together.

Clipping asks for the norm of each gradient, and a penalty for the sum over each weight. Such a number is sent when some
worker looks at it, in one parcel with all others that were computed since; what the script computes from numbers alone
(sums, factors) waits with them. Until then a `Number` has a type and a device, and no value.

A worker may look alone: a tracker of experiments reads numbers on rank 0 only. So there is no collective here. A worker
that looks sends its own numbers and waits for those of the others, and every worker sends its own before it waits for
anything else: at the seams, and before the parameters of a stage are gathered. If a peer is gone, the wait raises.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.comm.network.post import Post
from paceline.script import tree
from paceline.torch_private import OwnTensor, disabled_torch_function, make_wrapper_subclass, writes_to

META = torch.device("meta")
WHAT = "numbers that a stage has computed"
MOST = 4096  # numbers that wait together
FACTORIES = ("ones_like", "zeros_like", "empty_like", "full_like", "new_")  # the value does not matter
Formula = tuple["Number", Callable[..., Any], Any, Any]


class Number(OwnTensor):
    """A tensor without dimensions. `value` is known after `settle`."""

    value: torch.Tensor | None
    numbers: Numbers

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = next(leaf for leaf in tree.leaves((args, kwargs or {})) if isinstance(leaf, Number))
        return found.numbers.answer(func, args, kwargs or {})

    # -- what torch reads from a tensor's memory -----------------------------------------------------------------------

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        settled(self).data = settled(new)

    def numpy(self, *, force: bool = False) -> Any:
        return self._shown().numpy(force=force)

    def tolist(self) -> Any:
        return settled(self).tolist()

    def __format__(self, spec: str) -> str:
        return format(settled(self), spec) if spec else str(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self.grad_fn is None:
            return repr(self._shown())
        return f"{repr(settled(self))[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.grad_fn is not None:
            return super().__deepcopy__(memo)
        return memo.setdefault(id(self), self._shown())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._shown().__reduce_ex__(protocol)

    def _shown(self) -> torch.Tensor:
        return settled(self).clone().requires_grad_(self.requires_grad)


class Numbers:
    """The numbers of one worker of a pipeline."""

    def __init__(self, group: Group, post: Post) -> None:
        self._group, self._post = group, post
        self._lock = threading.RLock()  # a tracker may look on a thread of its own
        self._own: list[tuple[Number, torch.Tensor]] = []  # that no other worker has
        self._due: list[deque[Number]] = [deque() for _ in range(group.world)]  # that this worker has not, by owner
        # Values that came before this worker was as far.
        self._early: list[deque[torch.Tensor]] = [deque() for _ in range(group.world)]
        self._formulas: list[Formula] = []

    def of(self, value: torch.Tensor | None, like: torch.Tensor, owner: int, device: Any) -> Number:
        """A number that its owner has just computed. Every worker of the pipeline calls it, in the same order."""
        made = self._made(like.dtype, device)
        with self._lock:
            if owner != self._group.rank:
                self._due[owner].append(made)
            elif value is not None:
                with torch.inference_mode(False):
                    self._own.append((made, value.clone()))
            waiting = len(self._own) + sum(map(len, self._due))
        if waiting >= MOST:
            self.settle()
        return made

    def send(self) -> None:
        """Before this worker waits for another one: its own numbers are on their way. Does not wait."""
        with self._lock:
            if not self._own:
                return
            values = [value for _, value in self._own]
            for peer in range(self._group.world):
                if peer != self._group.rank:
                    self._post.send(peer, None, values)
            for number, value in self._own:
                number.value = value
            self._own.clear()

    @torch.inference_mode(False)
    @torch.no_grad()
    def settle(self) -> None:
        """All numbers so far have their values. Waits for those of other stages."""
        with self._lock:
            self.send()
            for owner, due in enumerate(self._due):
                early = self._early[owner]
                while due:
                    if not early:
                        early.extend(value for value in self._post.receive(owner, WHAT)[1] if value is not None)
                    number = due.popleft()
                    number.value = early.popleft().to(number.device)
            formulas, self._formulas = self._formulas, []
            for number, func, args, kwargs in formulas:
                number.value = called(func, args, kwargs, value_of)

    def close(self) -> None:
        """After the script: nothing more is sent."""
        self._post.close()

    def answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function returns for arguments of which some are numbers."""
        tensors = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        name = func.overloadpacket.__name__
        if name.startswith(FACTORIES):
            return called(func, args, kwargs, _stand_in)
        if all(tensor.value is not None for tensor in tensors if isinstance(tensor, Number)):
            return self._computed(func, args, kwargs)
        alone = not any(tensor.dim() for tensor in tensors) and torch.Tag.nondeterministic_seeded not in func.tags
        plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter, Number) for tensor in tensors)
        if alone and plain and not writes_to(func, args, kwargs):
            try:
                like = called(func, args, kwargs, on_meta)
            except (NotImplementedError, RuntimeError):
                like = None
            if isinstance(like, torch.Tensor) and not like.dim():
                made = self._made(like.dtype, kwargs.get("device") or tensors[0].device)
                # Copies: the script may change the others before the formula is computed.
                self._formulas.append((made, func, *tree.replace((args, kwargs), _kept)))
                return made
        self.settle()
        return self._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        known = {id(leaf.value): leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, Number)}
        result = called(func, args, kwargs, value_of)
        return tree.replace(result, lambda leaf: known.get(id(leaf), leaf))

    def _made(self, dtype: torch.dtype, device: Any) -> Number:
        with torch.inference_mode(False):
            made: Number = make_wrapper_subclass(Number, (), dtype=dtype, device=device)
        made.value, made.numbers = None, self
        return made


def settled(value: Any) -> Any:
    """The value of a number, as a plain tensor without a graph; anything else as it is. May wait for other stages."""
    if not isinstance(value, Number):
        return value
    if value.value is None:
        value.numbers.settle()
    return value.value


def value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, Number) else leaf


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Number) else leaf


def _stand_in(leaf: Any) -> Any:
    return torch.zeros((), dtype=leaf.dtype, device=leaf.device) if isinstance(leaf, Number) else leaf


def on_meta(leaf: Any) -> Any:
    """A tensor of the same shape and type without numbers."""
    if isinstance(leaf, torch.Tensor):
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=META)
    return META if isinstance(leaf, torch.device) else leaf


def called(func: Callable[..., Any], args: Any, kwargs: Any, put: Callable[[Any], Any]) -> Any:
    """What the function returns for other leaves."""
    args, kwargs = tree.replace((args, kwargs), put)
    return func(*args, **kwargs)
