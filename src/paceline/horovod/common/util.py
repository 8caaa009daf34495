"""Small functions that scripts and Horovod's own examples import from `horovod.common.util`."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from paceline.horovod.engine.messages import AVERAGE, SUM
from paceline.settings import changed_environment

T = TypeVar("T")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Horovod's interface for this framework is there: only that for torch is."""
    return ext_base_name == "torch"


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Nothing is compiled, so nothing can be missing."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    import torch

    return torch.cuda.is_available()


def gloo_built(verbose: bool = False) -> bool:
    return True


def mpi_built(verbose: bool = False) -> bool:
    return False


def nccl_built(verbose: bool = False) -> bool:
    import torch.distributed

    return torch.distributed.is_nccl_available()


def ddl_built(verbose: bool = False) -> bool:
    return False


def ccl_built(verbose: bool = False) -> bool:
    return False


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables for a while; those that are None are left alone."""
    with changed_environment({name: value for name, value in kwargs.items() if value is not None}):
        yield


def which_op(op: int | None, average: bool | None) -> int:
    """The reduce operation, of the parameter `op` and of its predecessor `average`."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is not None:
        warnings.warn(
            "Parameter `average` has been replaced with `op` and will be removed in v1.0", DeprecationWarning, 3
        )
        return AVERAGE if average else SUM
    return AVERAGE


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and not num_rank & (num_rank - 1)


def split_list(items: Sequence[T], count: int) -> list[Sequence[T]]:
    """`count` parts of nearly the same length, in order."""
    cuts = [len(items) * part // count for part in range(count + 1)]
    return [items[start:end] for start, end in itertools.pairwise(cuts)]


def is_iterable(x: object) -> bool:
    return isinstance(x, Iterable)


def _cache(f: Callable[..., T]) -> Callable[..., T]:
    """Computes once for the same arguments."""
    return functools.cache(f)
