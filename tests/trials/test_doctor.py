"""What the doctor finds, and what it says to type."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from paceline.checks.checks import TorchFacts

from paceline.doctor import checks
from paceline.topology import Core, Host


def host(cores: int = 4, quota: float | None = None, gpus: tuple[str, ...] = ()) -> Host:
    return Host(
        name="here",
        cores=tuple(Core(id=i, node=0, physical=(0, i)) for i in range(cores)),
        quota=quota,
        gpus=gpus,
    )


@pytest.fixture
def dead_pid() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_everything_is_looked_at_and_nothing_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "ask_torch", lambda: TorchFacts(version="2.13.0", backends=["gloo"]))
    found = checks.examine(tmp_path)
    names = [check.name for check in found]
    assert len(names) == len(set(names))
    assert {
        "python",
        "torch",
        "devices",
        "backends",
        "shared memory",
        "ports",
        "threads",
        "leftovers",
    } <= set(names)
    assert all(check.advice for check in checks if not check.ok)


def test_a_check_that_fails_itself_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "ask_torch", TorchFacts)
    monkeypatch.setattr(socket, "gethostname", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # the machine itself cannot be described without a name
        checks.examine(tmp_path)
    [check] = [checks._carefully(checks.host_name)]
    assert not check.ok
    assert "ZeroDivisionError" in check.found


def test_a_torch_that_does_not_import_prevents_a_run():
    check = checks.torch_works(TorchFacts(error="ImportError: libcudart.so.12: cannot open"))
    assert not check.ok
    assert check.prevents
    assert "libcudart" in check.found


def test_a_gpu_that_torch_cannot_use():
    check = checks.devices(TorchFacts(), host(gpus=("0",)))
    assert not check.ok
    assert "CUDA" in check.advice


def test_gpus_without_nccl():
    check = checks.backends(TorchFacts(gpus=["H200"], backends=["gloo"]))
    assert not check.ok
    assert not check.prevents


def test_no_gloo_prevents_a_run():
    assert checks.backends(TorchFacts()).prevents


def test_a_container_that_grants_less_than_it_shows():
    check = checks.cores(host(cores=8, quota=2.0))
    assert not check.ok
    assert "-n 2" in check.advice


@pytest.mark.parametrize("value", ["0", "-1", "lots", "5", ""])
def test_odd_thread_counts(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    check = checks.threads(host(cores=4))
    assert not check.ok
    assert "unset OMP_NUM_THREADS" in check.advice


def test_a_sensible_thread_count(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert checks.threads(host(cores=4)).ok


def test_little_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SMALL_SHARED_MEMORY", 2**70)
    check = checks.shared_memory(tmp_path)
    assert not check.ok
    assert "--shm-size" in check.advice
    assert not checks.shared_memory(tmp_path / "none").ok


def test_a_shell_inside_another_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    check = checks.launcher()
    assert not check.ok
    assert "unset" in check.advice
    assert "RANK" in check.advice


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    check = checks.record_folder(tmp_path / "records")
    assert not check.ok
    assert "--record" in check.advice


def test_shared_memory_of_dead_processes_is_a_leftover(tmp_path, dead_pid):
    (tmp_path / f"torch_{dead_pid}_123_0").touch()
    (tmp_path / f"torch_{os.getpid()}_123_0").touch()
    (tmp_path / "somebody-elses").touch()
    check = checks.leftovers(tmp_path)
    assert not check.ok
    assert f"torch_{dead_pid}" in check.advice
    assert f"torch_{os.getpid()}" not in check.advice
