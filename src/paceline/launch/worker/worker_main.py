"""The main function of a worker: sets up the stage and its mods, runs the script, and closes the stage."""

from __future__ import annotations

import builtins
import dataclasses
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch.distributed as dist

from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.imports import holders
from paceline.launch.worker import thaw
from paceline.mods import catalog
from paceline.mods.in_force import InForce
from paceline.record.timeline import TimelineWriter
from paceline.record.writer import StepWriter, write_tuning
from paceline.script import horovod_names, memory, own_gpu, rng
from paceline.script.notices import Notices
from paceline.script.output import terminal
from paceline.script.output.in_step import InStep
from paceline.script.output.rank0 import Voice
from paceline.script.output.tracking import Tracking
from paceline.script.recorder import EnoughSteps, Recorder
from paceline.script.run_script import play
from paceline.script.seams import api, instrument, self_distributed
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings, WorkerSettings
from paceline.strategies import catalog as strategies


def prepare(run: RunSettings) -> None:
    """The zygote calls this function before it forks the workers of a run: what it imports and finds here, no worker
    imports and finds again."""
    if run.staged:
        strategies.import_class(strategies.parse(run.strategy).entry)
        for patched in (builtins.open, dist.init_process_group):
            holders(patched)


def perform(settings: WorkerSettings, pulse: Pulse, temporary: str) -> None:
    """Runs the script in this process. Every worker of the run calls this function. It passes on the script's
    exceptions. `temporary`: a folder of the run that is removed at its end."""
    run, folder = settings.run, Path(settings.record)
    pulse.speaks = settings.rank == 0
    if not run.staged:
        play(run)
        return
    strategy = strategies.load(run.strategy)
    # Workers that go at their own pace have no peers: nothing is gathered, compared or waited for.
    own = settings if strategy.lockstep else dataclasses.replace(settings, world=1, local_world=1)
    group = Group(own, pulse=pulse, watch=Stopwatch())
    if group.members is not None and settings.hosts > 1:
        thaw.watch(group.members)
    if run.timeline:
        timeline = group.timeline = TimelineWriter(folder, settings.rank)
        group.watch.on_span = partial(timeline.add, "phases")
    stage = Stage(run, group, strategy)
    stage.ending.stern = True
    stage.aside = run.launch_as is not None
    mods = {str(asked): catalog.load(asked) for asked in catalog.parse(run.mods)}
    for mod in mods.values():
        mod.on_stage(stage)
    in_force = InForce(stage, mods)
    stage.subscribe(in_force)
    strategy.on_stage(stage)
    meter = None
    if run.noise_scale:
        from paceline.converge.noise.measure import NoiseMeter

        meter = NoiseMeter(stage, folder, strategy)
    recorder = Recorder(stage, StepWriter(folder / f"steps.rank{settings.rank}.jsonl"))
    if run.track and settings.rank == 0:
        name = run.script if run.module else Path(run.script).stem
        recorder.tracking = Tracking(run.track, pulse, script=name, record=folder.name)
    stage.subscribe(Notices(stage))
    capture = None
    if run.profile is not None:
        from paceline.profile.capture import Capture  # torch's profiler takes long to import

        capture = Capture(stage, recorder, folder, run.profile)
    gathering = None
    if run.facts:
        from paceline.profile.facts import Gathering

        gathering = Gathering(stage, recorder, folder)
    keeper = None
    if run.account:
        from paceline.profile.account import Keeper

        keeper = Keeper(stage, folder)
    solution = None
    if run.sharpness is not None:
        from paceline.converge.sharpness.solution import SolutionMeter

        solution = SolutionMeter(stage, folder, run.sharpness)
    if group.world > 1 and not stage.aside:
        name = f"rank{settings.rank}"
        in_step = InStep(stage, folder / "scratch" / "written", is_first=not settings.rank)
        if settings.rank:
            Voice(stage, folder / "scratch" / name, Path(temporary) / name, in_step).install()
        else:
            in_step.install()
    terminal.install(group, {stream: size for stream, *size in settings.terminal}, alone=stage.aside)
    instrument.find(stage)
    if solution is not None:
        solution.install()
    self_distributed.watch(stage)
    horovod_names.install(stage)
    api.take_stage(stage, folder)
    if stage.aside:
        self_distributed.seed(run, settings.rank)
    else:
        rng.start(run.seed + run.seed_shift)
        rng.shift(run.seed_shift)
        own_gpu.show()
        pulse.view = stage.views.name
    try:
        with keeper or nullcontext():
            play(run)
    except EnoughSteps:
        recorder.on_end()
        in_force.on_end()
        strategy.on_enough()
        raise
    except SystemExit:
        stage.end()
        raise
    except BaseException as error:
        recorder.write()
        if memory.ran_out(error) and not stage.aside:
            from paceline.profile.account import shortage

            if run.memory_limit:
                memory.lift()
            error.add_note(shortage(stage))
        if stage.ending.first is not None:  # the first error is the cause, even if the script caught and replaced it
            raise stage.ending.first from None
        raise
    else:
        stage.end()
    finally:
        api.leave()
        if recorder.tracking is not None:
            recorder.tracking.close()
        if capture is not None:
            capture.close()
        if gathering is not None:
            gathering.write()
        if keeper is not None:
            keeper.close(sys.exc_info()[1])
        if meter is not None:
            meter.close()
        if group.timeline is not None:
            group.timeline.flush()
        if group.rank == 0 and (tuned := strategy.told()) is not None:
            write_tuning(folder, tuned)
