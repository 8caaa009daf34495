"""Freed memory that a worker keeps for its next step, and what it returns to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from launched import Play

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt and malloc_trim are glibc's")

# A row of the output takes 4 MiB, and 2 workers hold 2 rows each. The proof holds the rows of both, and copies of them.
SCRIPT = """
    import re, resource, torch
    from pathlib import Path

    class Wide(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).repeat(1, 1 << 20)

    def resident():
        return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

    model, x = Wide(1, 1), torch.ones(4, 1)
    with torch.no_grad():
        before = resident()
        for step in range(3):
            model(x)
            if step == 1:
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(resident() - before, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
    """


def test_a_worker_keeps_the_memory_of_a_step_and_not_that_of_the_proof(play: Play) -> None:
    launched = play(SCRIPT, workers=2)
    for rank in range(2):
        kept, faults = map(int, launched.log(rank).split())
        assert kept < 64 << 20, "the rows of both workers and copies of them would be kept"
        assert faults < 1024, "the rows of a worker have 2,048 pages, which were not returned"


MAPPED = """
    import os, torch
    x = torch.ones(16 << 20)
    for line in open("/proc/self/smaps"):
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            low, high = (int(end, 16) for end in first.split("-"))
        elif first == "VmFlags:" and low <= x.data_ptr() < high:
            print("hg" in rest, os.environ.get("GLIBC_TUNABLES"))
    """


def _has_huge_pages() -> bool:
    state = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    glibc = tuple(map(int, platform.libc_ver()[1].split(".")))
    return glibc >= (2, 35) and state.exists() and "[madvise]" in state.read_text()


@pytest.mark.skipif(not _has_huge_pages(), reason="the system gives no huge pages to those who ask")
def test_large_tensors_are_on_huge_pages_and_the_script_sees_no_variable_of_that(play: Play) -> None:
    launched = play(MAPPED, workers=2)
    assert [launched.log(rank) for rank in range(2)] == ["True None\n"] * 2
