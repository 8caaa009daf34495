"""A model of a step with a device, which predicts the effect of a change.

While the host waits for input, or restarts after a wait for the device, the device is idle: these times add up. In the
rest of the step the host launches while the device computes, and the slower of the two sets the time (the race). So a
change that makes the device faster gains nothing if the host is the slower one, and the other way round.

    wall = input + synchronisation + peer + race        race = the slower of launching and device, plus the loss when
                                                        the slower one changes during a step
Tracing slows down the host, not the device. So device times are those of the trace; host times are scaled to fit the
steps that were not traced.
"""

from __future__ import annotations

from dataclasses import dataclass

PROFILER = 1.6  # slow-down of the host under the profiler, assumed if untraced steps cannot show it: the device decides
HOST_DECIDES = 0.3  # idle fraction of an untraced step, without input: above it, step times show the host's slow-down


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """Seconds per mean step, without the profiler."""

    wall: float
    input: float  # the device idles: the script waits for its loader
    synchronisation: float  # the device idles: the host restarts after a wait for the device
    peer: float  # the device idles: the host waits for other workers
    launching: float  # in the race: time that the host needs
    device: float  # in the race: time that the device needs for kernels and copies
    turns: float  # in the race: time lost beyond the slower of both

    @property
    def host_decides(self) -> bool:
        return self.launching >= self.device

    def after(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """Seconds per step after these savings in seconds."""
        race = max(self.launching - launching, self.device - device, 0.0)
        before = max(self.launching, self.device)
        turns = self.turns * race / before if before else 0.0
        rest = max(self.input - input, 0.0) + max(self.synchronisation - synchronisation, 0.0) + self.peer
        return max(rest + race + turns, 1e-9)

    def gain(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """The speed-up after these savings in seconds."""
        return self.wall / self.after(device=device, launching=launching, input=input, synchronisation=synchronisation)

    def gain_without_waits(self) -> float:
        """The speed-up if the host never waits for the device: all of the host's work is then part of the race. Limited
        by the device's time."""
        host = self.input + self.synchronisation + self.launching
        return self.wall / max(host + self.peer, self.device + self.peer, 1e-9)


def clock(*, wall: float, data: float | None, traced: dict[str, float], waited: float) -> StepClock:
    """The model of a step. `wall` and `data`: seconds of an untraced step, and of loading in it (None: not known).
    `traced`: the device's times in a mean traced step (`wall`, `data`, `compute`, `communication`, `copy`, `idle`,
    `idle_*`). `waited`: seconds of it in which the host was blocked, waiting for the device."""
    busy = traced["compute"] + traced["communication"] + traced["copy"]
    idle = {cause: traced[f"idle_{cause}"] for cause in ("input", "peer", "synchronisation", "host", "queue")}
    whole, left = sum(idle.values()), max(wall - busy, 0.0)
    input = idle["input"] * min(left / whole, 1.0) if whole else 0.0
    if data is not None and traced["data"]:
        input = min(data * idle["input"] / traced["data"], left)  # the device idles during the same fraction of loading
    others = whole - idle["input"]
    scale = min((left - input) / others, 1.0) if others > 0 else 1.0
    own = max(traced["wall"] - waited - idle["input"] - idle["peer"] - idle["synchronisation"], 0.0)
    late = left - input > HOST_DECIDES * wall
    slowed = max((traced["wall"] - idle["input"]) / (wall - input), 1.0) if late else PROFILER
    # Launched work that has not begun is launch latency, which a host that runs ahead hides.
    race = busy + (idle["host"] + idle["queue"]) * scale
    launching = min(own / slowed, race)
    return StepClock(
        wall=busy + input + others * scale,
        input=input,
        synchronisation=idle["synchronisation"] * scale,
        peer=idle["peer"] * scale,
        launching=launching,
        device=busy,
        turns=max(race - max(launching, busy), 0.0),
    )
