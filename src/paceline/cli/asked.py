"""How a script is to run: the options of all verbs that run one, declared once.

A verb that is marked with `runs_scripts` takes them beside its own, and is handed them as one `Asked`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

from paceline.cli import options
from paceline.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """As it was typed."""

    script: options.Script
    arguments: options.Arguments = None
    module: options.Module = False
    view: options.ViewOption = "auto"
    batch_dim: options.BatchDim = 0
    whole: options.Whole = None
    sync_bn: options.SyncBn = False
    threads: options.Threads = None
    backend: options.BackendOption = "auto"
    seed: options.Seed = None
    oversubscribe: options.Oversubscribe = False
    stall_warning: options.StallWarning = 60.0
    stall_abort: options.StallAbort = None

    def settings(self) -> RunSettings:
        """Of a run of one worker, before the verb's own options. Draws a seed, where none was given."""
        return RunSettings(
            script=self.script,
            arguments=options.own_arguments(self.arguments),
            module=self.module,
            view=self.view,
            batch_dim=self.batch_dim,
            whole=tuple(self.whole or ()),
            sync_bn=self.sync_bn,
            threads=self.threads,
            backend=self.backend,
            seed=options.seed_or_new(self.seed),
            stall_warning=self.stall_warning,
            stall_abort=self.stall_abort,
        )


def runs_scripts(verb: Callable[..., None]) -> Callable[..., None]:
    """For a verb with a parameter `asked`."""
    shared = [field.name for field in fields(Asked)]

    @functools.wraps(verb)
    def take(**typed: Any) -> None:
        verb(asked=Asked(**{name: typed.pop(name) for name in shared}), **typed)

    own = inspect.signature(verb, eval_str=True).parameters
    parameters = [parameter for name, parameter in own.items() if name != "asked"]
    hints = get_type_hints(Asked, include_extras=True)
    for field in fields(Asked):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
        )
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return take
