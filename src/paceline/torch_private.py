"""Every private name of torch that Paceline uses, under a name of its own.

A new torch may move, rename or bypass them. Then this file fails to import, or `script/canary.py` says what has
changed, before a script runs. `torch._foreach_…` and a tensor's `_version`, which torch documents, are used directly.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch._C import _functorch
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, TCPStore
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch._guards import TracingContext, detect_fake_mode
from torch.fx import _symbolic_trace
from torch.jit import _builtins as _jit
from torch.jit._script import RecursiveScriptClass
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as BatchOrInstanceNorm
from torch.overrides import _get_current_function_mode as current_function_mode
from torch.utils._device import _device_constructors as list_device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapper
from torch.utils._pytree import tree_leaves as pytree_leaves
from torch.utils.data._utils import pin_memory as pinning
from torch.utils.data._utils.fetch import _MapDatasetFetcher as MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as LoaderIteratorInProcess

__all__ = [
    "AllgatherOptions",
    "BatchNorm",
    "BatchOrInstanceNorm",
    "DispatchMode",
    "LoaderIterator",
    "LoaderIteratorInProcess",
    "MapDatasetFetcher",
    "PrefixStore",
    "TCPStore",
    "current_function_mode",
    "list_device_constructors",
    "outside_transforms",
    "pinning",
    "pytree_leaves",
]

SCRIPT_OBJECTS = (torch.ScriptObject, RecursiveScriptClass)  # of C++ code: the weights of quantised layers

# Private attributes of torch's objects that are used where they are needed, by these names.
OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks", "_use_count")
OF_MODULES = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_parameters", "_buffers", "_modules", "_compiled_call_impl", "_call_impl", "_check_input_dim"),
)
OF_LOADERS = ("_iterator",)
OF_ITERATORS = (
    *("_auto_collation", "_collate_fn", "_dataset", "_dataset_fetcher", "_dataset_kind", "_index_sampler"),
    *("_next_index", "_num_workers", "_pin_memory"),
)
OF_NODES = ("_sequence_nr",)  # of the graph: the number of the one that made it
OF_FUNCTIONS = ("_backward_cls", "_forward_cls")  # of a Function's backward: where it was defined
OF_NODES = ("_sequence_nr",)  # of a graph of autograd: the order in which they were made
OF_OTHERS = (
    *("_Options", "_devices"),  # of ProcessGroupGloo
    "_allgather_base",  # of every process group
    "_local_tensor",  # of a DTensor
    "_is_param",  # of a tensor that is a parameter
    *("_unsharded_param", "_module_info", "_param_fqn"),  # of a parameter of FSDP2
    *("_lazy_init", "_register_pre_backward_hook"),  # of FSDP2's state of a module
    "_warned_capturable_if_run_uncaptured",  # of an optimizer
    "_pad_packed_sequence",  # of `bindings`
)


class DispatchMode(TorchDispatchMode):
    """Sees every operation. torch would keep its compiler out of the mode's own code, for which it imports the
    compiler: that takes seconds, and most scripts compile nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


nn_bindings: Any = torch._C._nn  # linear, activations and attention, as torch.nn.functional calls them
bindings = torch._VF  # dropouts and recurrent layers, as torch.nn.functional calls them
plain_dropout: Any = torch._C._VariableFunctions.dropout
plain_bernoulli_: Any = torch._C.TensorBase.bernoulli_
plain_grad: Any = torch._C.TensorBase.grad
plain_data: Any = torch._C.TensorBase.data
gamma_gradient = torch._standard_gamma_grad
safe_softmax = torch._safe_softmax  # zeros for a row of −∞
plain_dropout_: Any = torch._C._VariableFunctions.dropout_
no_torch_function: Any = torch._C.DisableTorchFunctionSubclass  # inside it, subclasses are not asked
disabled_torch_function = torch._C._disabled_torch_function_impl
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph  # of the backward that runs
make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
is_any_true: Any = torch.ops.aten._is_any_true.default
swap_tensor_impl = torch._C._swap_tensor_impl
no_functions_or_modes: Any = torch._C.DisableTorchFunction  # … and no mode
no_dispatch_modes: Any = torch.utils._python_dispatch._disable_current_modes  # … and none of these is told
old_reduction: Callable[..., str] = torch.nn._reduction.legacy_get_string  # of `size_average` and `reduce`
graph_node_running: Callable[[], Any] = torch._C._current_autograd_node  # None outside of a backward
graph_nodes_made: Callable[[], int] = torch._C._autograd._get_sequence_nr  # by this thread
current_stream_number: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentStream", lambda device: 0)


hooked_step: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.optim.Optimizer.profile_hook_step


def own_grad(parameter: Any) -> Any:
    """A tensor's gradient as it is. Its class would be asked, and would call what has taken the place of `.grad`, which
    sums kept-back gradients: in the middle of a backward, in which workers do not meet."""
    with torch._C.DisableTorchFunctionSubclass():
        return plain_grad.__get__(parameter)


def set_own_grad(parameter: Any, grad: Any) -> None:
    with torch._C.DisableTorchFunctionSubclass():
        plain_grad.__set__(parameter, grad)


def unhooked_step(step: Any) -> Callable[..., Any]:
    """A class's step without the hooks that torch puts round it at the first optimizer of the class."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


count_uses: Callable[[int], int] = torch._C._storage_Use_Count  # of a storage, by its address


def uses_of(storage: Any) -> int:
    """The number of tensors that share a storage."""
    return int(count_uses(address_of(storage)))


def address_of(storage: Any) -> int:
    """The address of a storage, for `count_uses`."""
    return int(storage._cdata)


def is_checkpointed() -> bool:
    """Whether torch.utils.checkpoint (that which is not reentrant) keeps what is computed here, to compute it again."""
    hooks = saved_tensor_hooks()
    return hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint"


def unseen_by_modes() -> Any:
    """Inside it no dispatch mode is told what is computed; costs nothing where there is none."""
    return no_dispatch_modes() if torch._C._len_torch_dispatch_stack() else contextlib.nullcontext()


def saved_tensor_hooks() -> Any:
    """The hooks that are set on tensors saved for backward; None if there are none."""
    asked = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_tracing: None)
    return asked(False)


def own_saved_tensors() -> Any:
    """Inside it, hooks that the script has set on saved tensors (a checkpoint around the call) see none."""
    if saved_tensor_hooks() is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def writes_to(operator: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator of torch changes; of a list each item."""
    found: list[Any] = []
    for place, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return found


def arguments_of(operator: Any) -> list[Any]:
    """The arguments of an operator of torch, as its schema has them."""
    return list(operator._schema.arguments)


def schema_of(operator: Any) -> str:
    return str(operator._schema)


def changes_arguments(operator: Any) -> bool:
    """Whether an operator of torch changes an argument in place."""
    return bool(operator._schema.is_mutable)


def is_view(operator: Any) -> bool:
    """Whether an operator of torch returns memory of its arguments."""
    return any(result.alias_info is not None for result in operator._schema.returns)


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile was given; any other module itself."""
    found: nn.Module = getattr(module, "_orig_mod", module)
    return found


def keep_saved_tensors() -> None:
    """What is compiled from now on does not overwrite saved tensors in its backward, which may then run twice."""
    # Imported here, because most runs compile nothing.
    from torch._functorch import config

    config.donated_buffer = False


def is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


class Inductor:
    """What torch.compile's default backend is made of. Imported where it is used: most runs compile nothing."""

    LAST = "torch._inductor.fx_passes.joint_graph"  # imported at the first compilation, after the rest

    @staticmethod
    def joint_graph() -> Any:
        return sys.modules[Inductor.LAST]

    @staticmethod
    def seeds_streams() -> tuple[Any, str] | None:
        """The function, as a module and a name, that gives compiled code whose draws are made again in backward streams
        of its own, by a draw from torch's at the code's first run. None if this torch has none."""
        from torch._functorch._aot_autograd import runtime_wrappers

        name = "initialize_rng_states"
        return (runtime_wrappers, name) if hasattr(runtime_wrappers, name) else None

    @staticmethod
    def makes_cuda_graphs() -> bool:
        """Whether the compilation under way is for CUDA graphs."""
        from torch._inductor import config

        return bool(config.triton.cudagraphs)

    @staticmethod
    def prims() -> Any:
        from torch._inductor import inductor_prims

        return inductor_prims

    @staticmethod
    def register_lowering(operator: Any, lower: Callable[..., Any]) -> None:
        from torch._inductor.lowering import register_lowering

        register_lowering(operator, type_promotion_kind=None)(lower)

    @staticmethod
    def ops() -> Any:
        from torch._inductor.virtualized import ops

        return ops

    @staticmethod
    def pointwise(device: Any, dtype: torch.dtype, of: Callable[..., Any], size: list[Any]) -> Any:
        from torch._inductor.ir import Pointwise

        return Pointwise.create(device=device, dtype=dtype, inner_fn=of, ranges=size)

    @staticmethod
    def integer(number: int) -> Any:
        import sympy  # type: ignore[import-untyped]

        return sympy.Integer(number)


def compile_weight_gradients_as_cudnn() -> None:
    """For torch.compile, lays the gradient of a convolution's weight out as cuDNN does: by the input alone. Torch's
    fake kernel goes by the input and the weight. They part where a map has one pixel, whose strides are ambiguous (the
    last layers of a ResNet on 32×32 in channels_last): an assertion then ends the run."""
    from torch._prims_common import suggest_memory_format
    from torch._subclasses.fake_impls import op_implementations_dict as kernels

    def is_channels_last(tensor: torch.Tensor) -> bool:
        suggested: torch.memory_format = suggest_memory_format(tensor)
        return suggested is torch.channels_last

    operator = torch.ops.aten.convolution_backward.default
    plain = kernels[operator]
    if getattr(plain, "__module__", "") == __name__:
        return

    def convolution_backward(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(mode, func, *args, **kwargs)
        given, weight = args[1], found[1]
        if weight is None or given.dim() != 4 or given.device.type != "cuda" or not is_channels_last(weight):
            return found
        if is_channels_last(given.contiguous(memory_format=torch.channels_last)):
            return found
        with mode:
            contiguous = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
        return found[0], contiguous, found[2]

    kernels[operator] = convolution_backward


def compiles_anew() -> None:
    """What is compiled from now on passes inductor's changes of the graph, whatever was compiled in earlier runs."""
    from torch._functorch import config

    config.enable_autograd_cache = False


def is_running_compiled() -> bool:
    """Whether torch.compile looks at the functions that are called: inside a compiled function."""
    callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
    return callback() not in (None, False)


def makes_graph() -> bool:
    """Whether torch.compile is making a graph, in any of its stages: what is called then is part of the graph."""
    return TracingContext.try_get() is not None


def is_being_traced(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one of a graph that is being made: it must not be kept."""
    return torch._is_functional_tensor(tensor) or detect_fake_mode(tensor) is not None


fused_attention_choice: Callable[..., int] = torch._fused_sdp_choice


def fused_attention_settings() -> tuple[Any, ...]:
    """What that choice depends on beside its arguments."""
    enabled = (
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
        torch._C._get_math_sdp_enabled(),
    )
    return (*enabled, torch._C._get_cudnn_sdp_enabled(), *torch._C._get_sdp_priority_order())


def is_transformed() -> bool:
    """Whether this is inside a torch.func transform."""
    return _functorch.peek_interpreter_stack() is not None


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing is computed, and the host must not ask the device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_tracing() -> bool:
    """Whether calls are only traced, to make a graph of them."""
    return not torch.compiler.is_dynamo_compiling() and (
        torch._C._is_tracing()
        or getattr(_symbolic_trace, "_is_fx_tracing_flag", False)
        or (torch._C._len_torch_dispatch_stack() > 0 and detect_fake_mode() is not None)
    )


def take_for_torchs_own(function: Callable[..., Any], plain: Callable[..., Any]) -> None:
    """torch.jit.script takes this function for torch's own `plain`, if it knows that."""
    if (operator := _jit._find_builtin(plain)) is not None:
        _jit._register_builtin(function, operator)


def keep_out_of_graphs(code: CodeType) -> None:
    """torch.compile starts no graph in this code. Imports torch._dynamo, which takes long."""
    torch._dynamo.eval_frame.skip_code(code)


def is_torchs_call(call: Any) -> bool:
    """Whether this is torch's own `nn.Module.__call__`, which only asks whether the module is compiled: not another
    library's, nor that of a torch that does more."""
    own = nn.Module._wrapped_call_impl
    return call is own and own.__code__.co_names == ("_compiled_call_impl", "_call_impl")


def set_call_known_to_dynamo() -> None:
    """Tells torch.compile that the current module call is torch's own, so that it inlines `forward` directly.

    torch._dynamo looks up that call when it is imported. A reused zygote imports torch._dynamo before the patch:
    without this, the compiler would trace Paceline's lines and guard on the stage at every module, and a trial would
    compile other code than a run.
    """
    if "torch._dynamo" in sys.modules:
        for module in (torch._dynamo.utils, torch._dynamo.variables.nn_module):
            module.unpatched_nn_module_call = nn.Module.__call__  # type: ignore[attr-defined]


def fsdp_state(module: Any) -> Any:
    """What FSDP2 knows about a module that `fully_shard` was applied to."""
    return module._get_fsdp_state()


def fsdp_groups(module: Any) -> list[Any]:
    """The groups of parameters that FSDP2 gathers together for this module. Older versions have one at most."""
    state = fsdp_state(module)
    groups = getattr(state, "_fsdp_param_groups", None)
    return list(groups) if groups is not None else [state._fsdp_param_group] if state._fsdp_param_group else []


def remove_fsdp_hooks(module: Any) -> None:
    """Takes FSDP2's hooks off a module: `before_fsdp_call` and `after_fsdp_call` do what they do."""
    state = fsdp_state(module)
    state._pre_forward_hook_handle.remove()
    state._post_forward_hook_handle.remove()


def before_fsdp_call(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Gathers the module's parameters. Returns the arguments to call it with."""
    found: tuple[Any, Any] = fsdp_state(module)._pre_forward(module, args, kwargs)
    return found


def after_fsdp_call(module: Any, args: Any, output: Any) -> Any:
    """Frees the module's parameters. Returns the output, whose backward gathers them again."""
    return fsdp_state(module)._post_forward(module, args, output)


def reset_fsdp(root: Any) -> None:
    """Frees what FSDP2 has gathered, after a call or a backward that raised."""
    if hasattr(root, "reset_iter_state"):
        root.reset_iter_state()
        return
    context = fsdp_state(root)._state_ctx
    context.iter_forward_root = None
    for module in root.modules():
        if hasattr(module, "_get_fsdp_state"):
            reset_fsdp_unit(module)


def reset_fsdp_unit(module: Any) -> None:
    """The same for one module that `fully_shard` was applied to."""
    state = fsdp_state(module)
    idle = type(state._training_state).IDLE
    state._training_state = idle
    for group in fsdp_groups(module):
        group._all_gather_result, group._training_state = None, idle
        group.reshard()
        for parameter in group.fsdp_params:
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


def is_gathered_for_call(parameter: Any) -> bool:
    """Whether FSDP2 holds the parameter: a call sees a gathered copy of it."""
    return is_dtensor(parameter) or getattr(parameter, "_paceline_gathered", False)


unoptimized_execution: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]


def plain_class(module: nn.Module) -> type:
    """The module's class; that which it had before FSDP2, or a mod, gave it one of its own."""
    home = sys.modules.get("torch.distributed.fsdp")
    kind = type(module)
    if kind.__module__.startswith("paceline.") and isinstance(module, BatchNorm):
        return next(cls for cls in kind.__mro__ if cls.__module__.startswith("torch.") and cls is not BatchNorm)
    is_sharded = home is not None and home.FSDPModule in kind.__bases__
    return kind.__mro__[2] if is_sharded else kind


def is_fsdps_attribute(name: str) -> bool:
    """Whether a module has this attribute only since FSDP2 took it over."""
    return name.startswith(("_is_fsdp", "_fsdp")) or "composable" in name


def is_fsdps_hook(hook: Any) -> bool:
    """Whether FSDP2 has set this hook on a module, also where it is wrapped into one of ours."""
    return str(getattr(getattr(hook, "hook", hook), "__module__", "")).startswith("torch.distributed.fsdp")


def is_dtensor(tensor: Any) -> bool:
    """Whether this is a DTensor, without importing torch.distributed.tensor, which takes long."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and isinstance(tensor, home.DTensor)


def strided_shard(dim: int, factor: int) -> Any:
    """The placement that FSDP2 gives the axis shard where another axis has split the same dimension into this many."""
    from torch.distributed.tensor.placement_types import _StridedShard  # takes long to import

    return _StridedShard(dim, split_factor=factor)


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors of which one of a library's own class consists, as a quantised weight of numbers and scales; a plain
    tensor itself."""
    if not is_wrapper(tensor) or is_dtensor(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from plain_parts(getattr(tensor, name))


def parameters_in(module: nn.Module, *, recurse: bool = True) -> Iterator[nn.Parameter]:
    """The parameters that the module and its children hold, each once, whatever the script's class makes of
    `parameters()`: a list, a part of them, another signature."""
    seen: set[nn.Parameter] = set()
    for m in module.modules() if recurse else (module,):
        for parameter in m._parameters.values():
            if parameter is not None and parameter not in seen:
                seen.add(parameter)
                yield parameter


# Likewise, by name.
named_parameters_in = nn.Module.named_parameters


class OwnTensor(torch.Tensor):
    """A class of tensors that scripts hold in place of torch's own. Libraries such as opt_einsum and autoray find an
    array's library by the module of its class."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__module__ = "torch"
