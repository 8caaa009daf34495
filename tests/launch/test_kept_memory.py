"""Freed memory that a worker keeps for its next step, and what it returns to the system."""

from __future__ import annotations

import platform

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
        assert kept < 24 << 20, "the rows of both workers and copies of them would be kept"
        assert faults < 512, "the rows of a worker have 2,048 pages, which were not returned"
