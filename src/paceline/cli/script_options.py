"""The options of all verbs that run a script, declared once.

A verb decorated with `runs_scripts` accepts these options beside its own, and gets them as its parameter `asked`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, get_type_hints

from paceline.cli import options
from paceline.cli.host_options import HostOptions
from paceline.cli.session import Session
from paceline.cli.stray_options import noticed
from paceline.errors import UsageError
from paceline.launch.horovod_scripts import distributes_itself
from paceline.record.about.labels import Labels, labels_of
from paceline.settings import SMALL, Launcher, RunSettings
from paceline.strategies import catalog as strategies


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions(HostOptions):
    """The options as typed."""

    script: options.Script
    arguments: options.Arguments = None
    module: options.Module = False
    strategy: options.Strategy = "mirrored"
    batch_dim: options.BatchDim = 0
    whole: options.Whole = None
    gather_below: options.GatherBelow = SMALL
    threads: options.Threads = None
    backend: options.BackendOption = "auto"
    seed: options.Seed = None
    oversubscribe: options.Oversubscribe = False
    stall_warning: options.StallWarning = 60.0
    stall_abort: options.StallAbort = None
    share_record: options.ShareRecord = False
    name: options.RecordName = None
    tag: options.Tags = None
    note: options.Note = None

    def labels(self) -> Labels:
        """The labels of the record. UsageError if one cannot be used."""
        return labels_of(self.name, self.tag or (), self.note)

    def settings(self) -> RunSettings:
        """The settings of a run on one worker, before the verb's own options. Draws a seed if none was given."""
        return RunSettings(
            script=self.script,
            launch_as=self.launcher(),
            arguments=options.own_arguments(self.arguments),
            module=self.module,
            strategy=str(strategies.parse(self.strategy)),
            batch_dim=self.batch_dim,
            whole=tuple(self.whole or ()),
            gather_below=self.gather_below,
            threads=self.threads,
            backend=self.backend,
            seed=options.seed_or_new(self.seed),
            stall_warning=self.stall_warning,
            stall_abort=self.stall_abort,
            share_record=self.share_record,
        )

    def launcher(self) -> Launcher | None:
        """None: Paceline splits the script's work. UsageError if the script does that itself: this verb changes it."""
        if distributes_itself(self.script, module=self.module):
            raise UsageError(
                f"{self.script} distributes itself with Horovod: it calls hvd.init(). This verb runs scripts for a "
                "single process, whose work Paceline splits.",
                advice="Type: paceline run, or paceline profile. How to take Horovod out: see docs/from-horovod.md",
            )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptionsWithLauncher(ScriptOptions):
    """The same for verbs that also run a script that distributes itself."""

    launch_as: options.LaunchAs = None
    env: options.Env = None

    def settings(self) -> RunSettings:
        return replace(ScriptOptions.settings(self), environment=tuple(self.env or ()))

    def launcher(self) -> Launcher | None:
        if self.launch_as is None and distributes_itself(self.script, module=self.module):
            return "horovod"
        return self.launch_as


def runs_scripts(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorates a verb whose parameter `asked` is one of the classes above, or `HostOptions`."""
    own = dict(inspect.signature(verb, eval_str=True).parameters)
    kind = own.pop("asked").annotation
    hints = get_type_hints(kind, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]

    @functools.wraps(verb)
    def take(**typed: Any) -> None:
        asked = kind(**{parameter.name: typed.pop(parameter.name) for parameter in shared})
        context = typed["context"]
        session = context.find_object(Session)
        module = isinstance(asked, ScriptOptions) and asked.module
        with (
            noticed(context.command, session.typed[1:], verb=context.command_path, module=module),
            session.resources,
        ):
            verb(asked=asked, **typed)

    parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own.values()), *shared]
    take.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    take.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return take
