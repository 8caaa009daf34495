"""What a run is advised at its end."""

from __future__ import annotations

import pytest

from paceline.record.phases import PHASES
from paceline.tables.delays import Delay
from paceline.trials.core.run_advice import advise
from paceline.trials.core.summary import Summary


def summary(*, workers: int = 1, counted: int = 20, exit_code: int = 0, mods=(), slowest=None, **shares) -> Summary:
    step = dict.fromkeys(PHASES, 0.0) | {"total": 1.0} | shares
    return Summary(
        workers=workers,
        view="batch",
        strategy="mirrored",
        mods=list(mods),
        seconds=10.0,
        exit_code=exit_code,
        steps=counted,
        counted=counted,
        step_time=1.0,
        step=step,
        slowest=slowest,
    )


def test_waiting_for_input_names_the_mod_that_loads_ahead():
    advice = advise(summary(data=0.87))
    assert advice.found == "87 % of a step is waiting for input."
    assert (advice.verb, advice.options) == ("run", ("--mod", "loader=fast"))
    several = advise(summary(workers=2, data=0.87))
    assert several.options == ("--mod", "loader=4"), "loader=fast is for one worker"


@pytest.mark.parametrize("mod", ["loader=2", "resident"])
def test_a_run_with_such_a_mod_is_sent_to_profile(mod):
    assert advise(summary(data=0.5, mods=[mod])).verb == "profile"
    assert advise(summary(data=0.5), own=False).verb == "profile"


def test_communication_on_one_host_asks_whether_fewer_workers_do():
    advice = advise(summary(workers=6, communication=0.88))
    assert advice.found == "88 % of a step is communication."
    assert (advice.verb, advice.options) == ("scale", ("-n", "1,2,4,6"))


def test_communication_between_hosts_can_be_compressed():
    waits = summary(workers=4, communication=0.5)
    assert advise(waits, hosts=2).options == ("--compression", "bf16")
    assert advise(waits, hosts=2, compression="bf16").verb == "scale"


def test_a_late_worker_is_not_called_communication():
    late = Delay(rank=1, own=0.9, behind=0.4, share=0.4, cause="forward", since=3, slow=True)
    advice = advise(summary(workers=2, communication=0.5, slowest=late))
    assert "waiting for rank 1" in advice.found
    assert advice.verb == "profile"


def test_every_advice_fits_a_line_of_80_characters():
    late = Delay(rank=1000, own=0.9, behind=1.0, share=1.0, cause="forward", since=3, slow=True)
    waits = summary(workers=1001, communication=1.0)
    told = [
        advise(summary(workers=1001, communication=1.0, slowest=late)),
        advise(waits),
        advise(waits, hosts=2),
        advise(summary(data=1.0)),
        advise(summary(data=1.0), own=False),
    ]
    assert [said for each in told if len(said := f"{each.found} {each.purpose}, type:") > 80] == []


@pytest.mark.parametrize("kind", [{"data": 0.29}, {"data": 0.9, "counted": 4}, {"data": 0.9, "exit_code": 1}])
def test_nothing_is_advised_without_a_reason(kind):
    assert advise(summary(**kind)) is None
