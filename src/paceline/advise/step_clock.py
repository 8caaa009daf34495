"""A step of a script with a device, in a few numbers: enough to say what a change would do to it.

While the host waits for input or begins anew after it has waited for the device, the device has nothing to do: these
times are in a row. The rest is a race: the host launches, the device computes, and the slower one decides. So a change
that makes the device faster gains nothing where the host is the slower one, and the other way round.

    wall = input + synchronisation + peer + race        race = the slower of launching and device, and what they
                                                        lose by taking turns at being the slower one
A trace makes the host slower, not the device. So the device's times are the trace's; the host's are scaled until
they fit the steps that were not traced.
"""

from __future__ import annotations

from dataclasses import dataclass

PROFILER = 1.6  # times as long: the host under the profiler, where untraced steps cannot tell, since the device decides
HOST_DECIDES = 0.3  # of an untraced step that the device idles, but for input: then step times tell how it is slowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds of a mean step, without the profiler."""

    wall: float
    input: float  # the device idles: the script waits for its loader
    synchronisation: float  # … the host begins anew after a wait
    peer: float  # … the host waits for other workers
    launching: float  # of the race, what the host needs
    device: float  # … what the device needs: kernels and copies
    turns: float  # … what is lost beyond the slower of both

    @property
    def host_decides(self) -> bool:
        return self.launching >= self.device

    def after(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """Seconds of a step from which so many are saved in each of these."""
        race = max(self.launching - launching, self.device - device, 0.0)
        before = max(self.launching, self.device)
        turns = self.turns * race / before if before else 0.0
        rest = max(self.input - input, 0.0) + max(self.synchronisation - synchronisation, 0.0) + self.peer
        return max(rest + race + turns, 1e-9)

    def gain(
        self, *, device: float = 0.0, launching: float = 0.0, input: float = 0.0, synchronisation: float = 0.0
    ) -> float:
        """How many times as fast."""
        return self.wall / self.after(device=device, launching=launching, input=input, synchronisation=synchronisation)

    def gain_without_waits(self) -> float:
        """How many times as fast where the host never waits for the device: all that it does is then part of the race.
        At most the device's whole time."""
        host = self.input + self.synchronisation + self.launching
        return self.wall / max(host + self.peer, self.device + self.peer, 1e-9)


def clock(*, wall: float, data: float | None, traced: dict[str, float], waited: float) -> Clock:
    """From the time of a step without the profiler and how much of it went by in the loader (None: not known); from
    what a device did in a mean traced step (`wall`, `data`, `compute`, `communication`, `copy`, `idle`, `idle_*`); and
    from how long the host was blocked in it, waiting for the device."""
    busy = traced["compute"] + traced["communication"] + traced["copy"]
    idle = {cause: traced[f"idle_{cause}"] for cause in ("input", "peer", "synchronisation", "host", "queue")}
    whole, left = sum(idle.values()), max(wall - busy, 0.0)
    input = idle["input"] * min(left / whole, 1.0) if whole else 0.0
    if data is not None and traced["data"]:
        input = min(data * idle["input"] / traced["data"], left)  # of loading, the device idles the same part
    others = whole - idle["input"]
    scale = min((left - input) / others, 1.0) if others > 0 else 1.0
    own = max(traced["wall"] - waited - idle["input"] - idle["peer"] - idle["synchronisation"], 0.0)
    late = left - input > HOST_DECIDES * wall
    slowed = max((traced["wall"] - idle["input"]) / (wall - input), 1.0) if late else PROFILER
    # Work that was launched and has not begun is the launch's latency, which a host that is ahead hides.
    race = busy + (idle["host"] + idle["queue"]) * scale
    launching = min(own / slowed, race)
    return Clock(
        wall=busy + input + others * scale,
        input=input,
        synchronisation=idle["synchronisation"] * scale,
        peer=idle["peer"] * scale,
        launching=launching,
        device=busy,
        turns=max(race - max(launching, busy), 0.0),
    )
