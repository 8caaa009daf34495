"""The control channel between the launcher and a worker, both in this process."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from paceline.launch import messages
from paceline.launch.control import Control, ControlChannel
from paceline.settings import RunSettings, WorkerSettings


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[ControlChannel]:
    channel = ControlChannel(tmp_path)
    yield channel
    channel.close()


@pytest.fixture
def settings(channel: ControlChannel) -> WorkerSettings:
    run = RunSettings(script="train.py", workers=2)
    return WorkerSettings(
        run=run, record="", rank=1, world=2, control=channel.address, control_key=channel.key, token=channel.token
    )


@pytest.fixture
def control(settings: WorkerSettings) -> Iterator[Control]:
    control = Control(settings)
    control.start()
    yield control
    control.close()


def until(channel: ControlChannel, wanted: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        channel.socket.poll(100)
        for rank, message in channel.receive():
            if wanted(message):
                assert rank == 1
                return message
    raise AssertionError("nothing of the kind came")


def test_heartbeats_carry_the_pulse(channel: ControlChannel, control: Control) -> None:
    assert until(channel, lambda m: isinstance(m, messages.Beat)).waiting == ""
    control.pulse.step, control.pulse.seam = 12, "before_step"
    control.pulse.enter("all_reduce of bucket 3")
    beat = until(channel, lambda m: isinstance(m, messages.Beat) and m.waiting and m.waited > 0.2)
    assert (beat.step, beat.seam, beat.waiting, beat.collectives) == (12, "before_step", "all_reduce of bucket 3", 1)


def test_where_are_you_is_answered_with_the_main_threads_stack(channel: ControlChannel, control: Control) -> None:
    assert not channel.ask_where(0), "rank 0 was never heard of"
    until(channel, lambda m: isinstance(m, messages.Beat))
    assert channel.ask_where(1)
    assert "test_control.py" in until(channel, lambda m: isinstance(m, messages.Stack)).text


def test_notices_and_failures_come_at_once_and_in_order(channel: ControlChannel, control: Control) -> None:
    control.pulse.notice("first")
    control.failed(messages.Failed(name="ValueError", summary="ValueError: x", text="trace", consequence=False))
    assert until(channel, lambda m: not isinstance(m, messages.Beat)) == messages.Said("first")
    assert until(channel, lambda m: not isinstance(m, messages.Beat)).summary == "ValueError: x"


def test_texts_that_utf_8_cannot_say_and_endless_ones_arrive_all_the_same(
    channel: ControlChannel, control: Control
) -> None:
    control.pulse.notice("no such file: caf\udce9")
    control.pulse.notice("x" * (3 << 20) + " the end")
    assert until(channel, lambda m: isinstance(m, messages.Said)).text == "no such file: caf\\udce9"
    text = until(channel, lambda m: isinstance(m, messages.Said)).text
    assert text.endswith("the end")
    assert "characters are left out" in text
    control.pulse.seam = "\udce9"  # in a heartbeat: the thread that sends them must not end
    assert until(channel, lambda m: isinstance(m, messages.Beat) and m.seam != "start").seam == "\\udce9"


def test_the_last_heartbeat_says_so(channel: ControlChannel, settings: WorkerSettings) -> None:
    control = Control(settings)
    control.start()
    control.pulse.step = 99
    control.close()
    assert until(channel, lambda m: isinstance(m, messages.Beat) and m.last).step == 99


def test_a_stranger_is_not_heard(channel: ControlChannel, settings: WorkerSettings) -> None:
    """Neither one without the run's token, nor one that does not speak CURVE, nor one that speaks nonsense."""
    stranger = Control(dataclasses.replace(settings, token="a guess"))
    stranger.start()
    stranger.notice("let me in")
    stranger.close()
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(channel.address)
        said = msgspec.json.encode(messages.FromWorker(1, messages.Said("plain text")))
        plain.send(channel.token.encode() + said)
        channel.socket.poll(300)
        assert list(channel.receive()) == []


def test_a_launcher_that_is_gone_does_not_keep_a_worker(settings: WorkerSettings, channel: ControlChannel) -> None:
    nobody = dataclasses.replace(settings, control=f"{channel.address}-elsewhere")
    control = Control(nobody)
    control.start()
    begun = time.monotonic()
    control.close()
    assert time.monotonic() - begun < 30  # it would be for ever


def test_a_folder_with_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes; a temporary folder's may be any."""
    folder = tmp_path / ("a" * 120)
    folder.mkdir()
    channel = ControlChannel(folder)
    assert os.listdir(folder) == ["control"]
    channel.close()
