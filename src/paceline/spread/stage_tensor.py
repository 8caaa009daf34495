"""A tensor whose numbers only the workers of one stage hold; to the script it is the whole tensor.

The parameters of a stage, their gradients and the optimizer's state are such tensors. A function of tensors of one
stage is computed by that stage alone, and its result is such a tensor, too: the other workers know its shape, and send
nothing. For a function of tensors of several stages, or one that needs numbers (`item`, `print`), the numbers are sent
to all workers, and the result is a plain tensor; so is a single number that a stage has computed (a norm, a penalty).
Random numbers are drawn by every worker.

A stage may have several workers, which divide its tensors once more (`Inside`): then the numbers are a DTensor along
the other axes of the mesh.

Every worker of the pipeline runs the same script, so that a message never waits for a worker that does not come. If a
peer is gone, the message that misses it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from paceline.comm.coalesced import from_owners
from paceline.comm.group import Group
from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.patches import patch
from paceline.script.rows.spread_tensor import become
from paceline.spread.stage_numbers import Numbers, called, on_meta, settled
from paceline.spread.write_back import LentCopies
from paceline.torch_private import (
    OwnTensor,
    disabled_torch_function,
    is_dtensor,
    is_view,
    make_wrapper_subclass,
    parameters_in,
    plain_data,
    writes_to,
)

WHAT = "the parameters of a stage"
LISTS = ("_foreach_", "_fused_")  # functions of lists of tensors
SAME = ("detach", "alias")


class StageTensor(OwnTensor):
    """`value`: the numbers, on the workers of the stage. `leaf`: what the stage computes with, of a parameter.
    `origin`: how this view is made of a tensor that the workers of the stage have divided, in other memory.
    `role`: what these workers know of a parameter (see `Inside`)."""

    value: torch.Tensor | None
    origin: tuple[StageTensor, Callable[..., Any], Any, Any] | None
    owner: int  # rank in the pipeline
    team: Team
    leaf: nn.Parameter | None
    role: Any

    __torch_function__ = disabled_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree.replace((args, kwargs or {}), settled)
        found = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, StageTensor)]
        return found[0].team.answer(func, args, kwargs, found)

    # -- what torch reads from a tensor's memory -----------------------------------------------------------------------

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        new = settled(new)
        if not isinstance(new, StageTensor) or new.owner != self.owner:
            self.team.note(new)
            new = self.team.owned(whole(new), self.owner)
        if (new.shape, new.dtype, new.device) != (self.shape, self.dtype, self.device):
            value = None if new.value is None else whole_value(new.value)
            _exchange(self, self.team.made(value, new, self.owner, new.device, requires_grad=self.requires_grad))
        self.value = new.value if new.value is None or self.value is None else fitted(new.value, self.value)
        if self.leaf is not None and self.value is not None:
            if is_dtensor(self.value):
                cast(Any, self.leaf)._local_tensor = memory_of(self.value)
            else:
                self.leaf.data = self.value

    @property
    def local(self) -> torch.Tensor:
        """What replicas of a stage hold alike: its own value, and nothing on the other stages."""
        if self.value is None or self.team.inside.gathers(self):
            return torch.empty(0, dtype=self.dtype, device=self.device)
        return memory_of(self.value)

    @property
    def kept(self) -> int:
        """The bytes that this worker holds."""
        return 0 if self.value is None else memory_of(self.value).nbytes

    def averaged(self, mean: Callable[[torch.Tensor], torch.Tensor]) -> StageTensor:
        """This gradient, averaged over the replicas of the stage by `mean`. The way back has averaged what is gathered
        for a call: replicas hold the other parts."""
        if self.value is None or self.team.inside.gathers(self):
            return self
        return self.team.made(mean(self.value), self, self.owner, self.device)

    def numpy(self, *, force: bool = False) -> Any:
        full = self.team.lent.known(self, whole(self))
        array = full.view_as(full).requires_grad_(self.requires_grad).numpy(force=force)
        self.team.lent.remember(self, full, array)
        return array

    def tolist(self) -> Any:
        return whole(self).tolist()

    def plain(self) -> torch.Tensor:
        """The whole tensor. Every worker of the pipeline calls it."""
        shown = whole(self)
        return nn.Parameter(shown, self.requires_grad) if getattr(self, "_is_param", False) else shown

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self.plain())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            value = None if self.value is None else self.value.clone()
            copied = self.team.made(value, self, self.owner, self.device)
            copied.role = self.role
            if getattr(self, "_is_param", False):
                _make_parameter(copied, self.requires_grad)
            grad = self.grad if self.is_leaf else None
            copied.grad = None if grad is None else grad.detach().clone()
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)


class Inside:
    """How the workers of one stage divide its tensors. This one: they do not, the stage has one worker."""

    def cut(self, parameter: torch.Tensor) -> torch.Tensor:
        """What a worker of the stage keeps of a parameter that it holds whole. Nothing is sent."""
        return parameter.detach()

    def role(self, parameter: torch.Tensor) -> Any:
        """What is to be known of the parameter afterwards."""
        return None

    def leaf(self, parameter: StageTensor) -> nn.Parameter:
        """What the stage computes with."""
        assert parameter.value is not None
        return nn.Parameter(parameter.value, parameter.requires_grad)

    def gathers(self, parameter: StageTensor) -> bool:
        """Whether that is gathered for a call. Then replicas of the stage, with other rows, hold the other parts. The
        answer is the same on every worker of the pipeline."""
        return False

    def own_part(self, whole: torch.Tensor, parameter: StageTensor) -> torch.Tensor:
        """Of a gradient of what was gathered, what this worker keeps."""
        return whole

    def plain(self, leaf: Any) -> Any:
        """What leaves a stage for another one, or for the script."""
        return leaf


class Team:
    """The workers of one pipeline."""

    inside = Inside()

    def __init__(self, group: Group, note: Callable[[Any], None], numbers: Numbers) -> None:
        """`note`: is told the numbers and plain tensors that the script puts into such tensors. `numbers`: those that
        stages compute."""
        self.group, self.note, self.numbers = group, note, numbers
        self.lent = LentCopies(
            (StageTensor,), whole, self._keep, _value
        )  # whose numbers the script may change through NumPy
        self.computes = False  # a stage runs, of which the other workers know nothing

    def made(
        self, value: torch.Tensor | None, like: torch.Tensor, owner: int, device: Any, *, requires_grad: bool = False
    ) -> StageTensor:
        """A tensor with this value on its owner, and the shape, strides and type of `like`."""
        with torch.inference_mode(False):  # a view of a parameter outlasts an evaluation
            made: StageTensor = make_wrapper_subclass(
                StageTensor,
                like.shape,
                strides=like.stride(),
                dtype=like.dtype,
                device=device,
                requires_grad=requires_grad,
            )
        made.value = value if owner == self.group.rank else None
        made.owner, made.team, made.leaf, made.origin, made.role = owner, self, None, None, None
        return made

    @contextmanager
    def computing(self, module: nn.Module) -> Iterator[None]:
        """While a stage of the module runs, its parameters are plain. Those of other stages must not be used."""
        with _in_place_of(module, {id(p): leaf_of(p) for p in parameters_in(module) if isinstance(p, StageTensor)}):
            self.computes = True
            try:
                yield
            finally:
                self.computes = False

    @contextmanager
    def gathered(self, parameters: Sequence[Any], leaves: Sequence[Any] = ()) -> Iterator[list[Any]]:
        """Meanwhile the stage's own parameters are gathered, as far as replicas of the stage hold parts of them, or are
        these `leaves`, which were gathered before. Every worker of the stage and of its replicas calls it."""
        own = [p for p in parameters if isinstance(p, StageTensor) and p.value is not None and self.inside.gathers(p)]
        for n, parameter in enumerate(own):
            parameter.leaf = leaves[n] if leaves else None
        try:
            yield list(map(leaf_of, own))
        finally:
            for parameter in own:
                parameter.leaf = None

    @contextmanager
    def together(self, module: nn.Module) -> Iterator[None]:
        """The module has whole, plain parameters meanwhile, on every worker. Every worker of the pipeline calls it."""
        own = [p for p in parameters_in(module) if isinstance(p, StageTensor)]
        wholes = self.gather(own)
        with torch.inference_mode(False):
            plain = {id(p): nn.Parameter(wholes[id(p)], p.requires_grad) for p in own}
        with _in_place_of(module, plain):
            yield

    def owned(self, plain: torch.Tensor, owner: int, like: StageTensor | None = None) -> StageTensor:
        """A tensor that all workers hold, as the owner's. `like`: its workers divide it as they divide this one."""
        plain = settled(plain)
        value = plain.detach() if like is None or like.value is None else fitted(plain.detach(), like.value)
        return self.made(value, plain, owner, plain.device)

    def answer(self, func: Any, args: Any, kwargs: Any, found: Sequence[StageTensor]) -> Any:
        """What a function returns for arguments of which these are stages' tensors."""
        if self.computes:
            raise ScriptError(
                "A stage of the pipeline uses a parameter of another stage, which the proof of the cut has not shown.",
                advice="Choose another strategy: --strategy mirrored",
            )
        if torch.Tag.inplace_view in func.tags:  # another shape, of this object
            if any(getattr(tensor, "_is_param", False) for tensor in found):
                raise ScriptError(
                    f"{func.overloadpacket.__name__} changes the shape of a stage's parameter.",
                    advice="Change the model's parameters before its first call, or choose --strategy mirrored.",
                )
            take_back(found)
            return func(*args, **kwargs)
        owners = {tensor.owner for tensor in found}
        name = func.overloadpacket.__name__
        if len(owners) > 1 and name.startswith(LISTS):
            return self._each(func, args, kwargs)
        targets = writes_to(func, args, kwargs)
        alone = len(owners) == 1 and torch.Tag.nondeterministic_seeded not in func.tags
        if alone and all(isinstance(target, StageTensor) for target in targets):
            if name in SAME:
                value = found[0].value
                return self.made(None if value is None else func(value), found[0], found[0].owner, found[0].device)
            result = self._at_owner(func, args, kwargs, found[0], targets)
            if result is not NotImplemented:
                return result
        return self._everywhere(func, args, kwargs, found, targets)

    def _at_owner(self, func: Any, args: Any, kwargs: Any, first: StageTensor, targets: list[Any]) -> Any:
        """The owner computes; NotImplemented if the shape of the result depends on numbers."""
        mine, shapes = first.owner == self.group.rank, None
        if not targets:
            try:
                shapes = called(func, args, kwargs, on_meta)
            except (NotImplementedError, RuntimeError):
                return NotImplemented
            if not all(isinstance(leaf, torch.Tensor) for leaf in tree.leaves(shapes)):
                return NotImplemented
        self.note((args, kwargs))
        for tensor in tree.leaves((args, kwargs)) if mine else ():
            _look_again(tensor)
        computed = called(func, args, kwargs, _value) if mine else None
        for target in targets if mine else ():
            _write_through(target)
        if targets:
            return None if isinstance(args[0], (list, tuple)) else targets[0] if len(targets) == 1 else tuple(targets)
        device = kwargs.get("device") or first.device
        values = iter(tree.leaves(computed) if mine else [])
        if mine:
            _refuse_others(func, tree.leaves(computed), tree.leaves(shapes))
        # Numbers (a norm, a penalty) are sent: what the script computes from them, all workers compute. But an element
        # of a parameter stays a part of its memory, which the script may change.
        is_number = not is_view(func) and not any(like.dim() for like in tree.leaves(shapes))
        make = self.numbers.of if is_number else self.made
        found = tree.replace(shapes, lambda like: make(next(values, None), like, first.owner, device))
        if mine and is_view(func) and (is_dtensor(first.value) or first.origin is not None):
            for n, leaf in enumerate(tree.leaves(found)):
                if not is_dtensor(leaf.value):
                    leaf.origin = first, lambda *a, n=n, **k: tree.leaves(func(*a, **k))[n], args, kwargs
        return found

    def _everywhere(
        self, func: Any, args: Any, kwargs: Any, found: Sequence[StageTensor], targets: Sequence[Any]
    ) -> Any:
        wholes = self.gather(found)
        known = {id(whole): tensor for tensor in found for whole in [wholes[id(tensor)]]}

        def put(leaf: Any) -> Any:
            return wholes[id(leaf)] if isinstance(leaf, StageTensor) else leaf

        result = called(func, args, kwargs, put)
        for target in targets:
            if isinstance(target, StageTensor):
                self.note(wholes[id(target)])
                if target.value is not None:
                    _write(target, wholes[id(target)])
        return tree.replace(result, lambda leaf: known.get(id(leaf), leaf))

    @torch.no_grad()
    def _keep(self, target: StageTensor, full: torch.Tensor) -> None:
        self.note(full)
        if target.value is not None:
            _write(target, full)

    def _each(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of lists, for one place after the other."""
        length = next(len(value) for value in args if isinstance(value, (list, tuple)))

        def at(value: Any, place: int) -> Any:
            return [value[place]] if isinstance(value, (list, tuple)) and len(value) == length else value

        found = [
            func(*(at(value, n) for value in args), **{key: at(value, n) for key, value in kwargs.items()})
            for n in range(length)
        ]
        return None if found[0] is None else [one[0] for one in found]

    @torch.inference_mode(False)
    @torch.no_grad()
    def gather(self, tensors: Sequence[StageTensor]) -> dict[int, torch.Tensor]:
        """The whole tensors, plain, by id. Every worker of the pipeline calls it; waits for all."""
        wholes: dict[int, torch.Tensor] = {}
        some = list({id(tensor): tensor for tensor in tensors}.values())
        for tensor in some:
            _look_again(tensor)
        values = [None if t.value is None else whole_value(t.value) for t in some]
        owned = [(t, t.owner, value) for t, value in zip(some, values, strict=True)]
        for number, _, value in from_owners(self.group, owned, WHAT):
            tensor = some[number]
            if 0 in tensor.stride():  # expanded
                wholes[id(tensor)] = value.clone()
                continue
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            wholes[id(tensor)] = made.copy_(value)
        return wholes


def _refuse_others(func: Any, computed: Sequence[Any], promised: Sequence[torch.Tensor]) -> None:
    """Raises if the stage has computed something else than the other workers believe (a quantised tensor)."""
    if any((one.shape, one.dtype) != (like.shape, like.dtype) for one, like in zip(computed, promised, strict=True)):
        raise ScriptError(
            f"{func.overloadpacket.__name__} of a stage's parameter returns a tensor of a kind that the other stages "
            "cannot know beforehand.",
            advice="Choose another strategy: --strategy mirrored",
        )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of all workers, as a plain tensor without a graph. Every worker of the pipeline calls it."""
    return tensor.team.gather([tensor])[id(tensor)] if isinstance(tensor, StageTensor) else settled(tensor)


def whole_value(value: torch.Tensor) -> torch.Tensor:
    """The whole of what the workers of a stage have divided. Every worker of the stage calls it."""
    if not is_dtensor(value):
        return value
    from paceline.spread.dtensors import whole_of  # DTensor takes long to import

    return whole_of(cast(Any, value))


def memory_of(value: torch.Tensor) -> torch.Tensor:
    """This worker's part of a value."""
    part: torch.Tensor = getattr(value, "_local_tensor", value)
    return part


def fitted(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value, divided as the workers of its stage have divided the other one. Every worker of the stage calls it."""
    if not is_dtensor(like):
        return whole_value(value)
    from paceline.spread.dtensors import is_laid_like, split_like

    return value if is_dtensor(value) and is_laid_like(value, like) else split_like(whole_value(value), like)


def _write(tensor: StageTensor, full: torch.Tensor) -> None:
    """A whole tensor's numbers become those of a stage's tensor, on a worker of the stage."""
    value: Any = tensor.value
    if is_dtensor(value):
        from paceline.spread.dtensors import part_like

        memory_of(value).copy_(part_like(full, value))
    else:
        value.copy_(full)
    _write_through(tensor)


def _look_again(tensor: Any) -> None:
    """A view of a divided tensor gets the numbers that this has now. Every worker of the stage calls it."""
    if isinstance(tensor, StageTensor) and tensor.origin is not None:
        _, value = _seen(tensor)
        cast(Any, tensor.value).copy_(value)


def _write_through(tensor: StageTensor) -> None:
    """What was written into a view of a divided tensor reaches this. Every worker of the stage calls it."""
    if tensor.origin is not None:
        full, value = _seen(tensor)
        value.copy_(cast(Any, tensor.value))
        _write(tensor.origin[0], full)


def _seen(tensor: StageTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole tensor of which this is a view, and the view of it."""
    base, func, args, kwargs = cast(Any, tensor.origin)
    _look_again(base)
    full = whole_value(base.value)
    return full, called(func, args, kwargs, lambda leaf: full if leaf is base else _value(leaf))


def leaf_of(parameter: torch.Tensor) -> torch.Tensor:
    """What this worker's stage computes with."""
    if not isinstance(parameter, StageTensor) or parameter.value is None:
        return parameter
    if parameter.leaf is None:
        with torch.inference_mode(False):
            parameter.leaf = parameter.team.inside.leaf(parameter)
    return parameter.leaf.requires_grad_(parameter.requires_grad)


def give(parameter: nn.Parameter, owner: int, team: Team) -> None:
    """This object becomes the owner's: the memory of all other workers is freed. Every worker of the pipeline calls it,
    with equal values; nothing is sent."""
    grad, parameter.grad = parameter.grad, None
    value = team.inside.cut(parameter) if owner == team.group.rank else None
    made = team.made(value, parameter, owner, parameter.device, requires_grad=parameter.requires_grad)
    made.role = team.inside.role(parameter)
    _exchange(parameter, made)
    if grad is not None:
        parameter.grad = grad if isinstance(grad, StageTensor) else team.owned(grad, owner, cast(Any, parameter))


def take_back(parameters: Sequence[Any]) -> None:
    """These objects become plain parameters or buffers again. Every worker of the pipeline calls it."""
    if not parameters:
        return
    team = parameters[0].team
    grads = [p.grad for p in parameters if isinstance(p.grad, StageTensor)]
    wholes = team.gather([*parameters, *grads])
    for parameter in parameters:
        grad, parameter.grad = parameter.grad, None
        plain = wholes[id(parameter)]
        is_parameter = isinstance(parameter, nn.Parameter)
        _exchange(parameter, nn.Parameter(plain, parameter.requires_grad) if is_parameter else plain)
        parameter.grad = wholes.get(id(grad), grad)


@cache
def assign_whole_data() -> None:
    """From now on a plain tensor whose `.data` is set to a stage's tensor gets the whole one: torch would take over the
    memory that such a tensor does not have."""

    def assign(target: torch.Tensor, value: torch.Tensor) -> None:
        plain_data.__set__(target, whole(value))

    patch(torch.Tensor, "data", property(plain_data.__get__, assign))


@contextmanager
def _in_place_of(module: nn.Module, others: dict[int, Any]) -> Iterator[None]:
    """The module has other parameters meanwhile, by the ids of its own."""
    kept = [(inner, name, p) for inner in module.modules() for name, p in inner._parameters.items() if id(p) in others]
    for inner, name, parameter in kept:
        put(inner, name, others[id(parameter)])
    try:
        yield
    finally:
        for inner, name, parameter in kept:
            put(inner, name, parameter)


def put(module: nn.Module, name: str, parameter: Any) -> None:
    """Directly, unless the module's class listens: a recurrent layer has its weights in a list, too."""
    if getattr(module.__setattr__, "__func__", None) is nn.Module.__setattr__:
        module._parameters[name] = parameter
    else:
        setattr(module, name, parameter)


def _exchange(parameter: Any, made: Any) -> None:
    if isinstance(parameter, nn.Parameter):
        made._is_param = True
    become(parameter, made)


def _make_parameter(tensor: StageTensor, requires_grad: bool) -> None:
    tensor._is_param = True
    tensor.requires_grad_(requires_grad)


def _value(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, StageTensor) else leaf
