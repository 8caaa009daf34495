"""Small files that claim to be large, or are: the memory that opening them takes, as the kernel counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # makes gigabytes; test_damage.py has small files and small limits
MIB = 1 << 20
BOMBS = Path(__file__).with_name("bombs.py")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("bombs")
    done = subprocess.run([sys.executable, "-W", "ignore", BOMBS, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("idx.gz holds more than it says", "the header says [10], 10 bytes, but more follow"),
        ("idx.gz is large", "has 536870912 bytes (512 MiB), over the limit of 64 MiB"),
        ("idx.gz claims to be larger than any memory", "follow at most"),
        ("CIFAR gz is large", "or more, over the limit of 64 MiB"),
        ("gzip TFRecord with a large record", "has 1073741825 bytes (1 GiB), over the limit of 1 GiB"),
        ("tar.gz with a large file", "with a.bin the sample has 1073742848 bytes"),
        ("text.gz without a line's end", "or more, over the limit of 256 MiB"),
        ("sample of many values", "over the limit of 1 GiB"),
        ("PNG of 169 million pixels", "(13000 × 13000 pixels) has 507000000 bytes (483.5 MiB), over the limit of 256"),
        ("PNG that is resized to a billion pixels", "resized from 20 × 20000 (5000 × 5000000 pixels)"),
        ("JPEG that claims 400 million pixels", "over the limit of 256 MiB"),
        ("JPEG that claims 400 million pixels, by Pillow", "limit"),
    ],
)
def test_what_is_too_large_is_refused_before_memory_is_taken(measured: Any, name: str, says: str) -> None:
    told = measured[name]
    assert (told["raised"], says in told["message"]) == ("DataError", True), told
    assert "max_bytes=" in told["message"] or "again" in told["message"]
    # Where a length is not told before its end, as much is held as the limit allows.
    assert told["grew"] < {"text.gz without a line's end": 320, "CIFAR gz is large": 112}.get(name, 24) * MIB, told


@pytest.mark.parametrize(
    ("name", "found", "most"),
    [
        ("gzip TFRecord with a large record, skipped", 0, 48),
        ("tar.gz with a large file, skipped", 0, 48),
        ("tar.gz with very many files", 131071, 24),
        ("Example of many numbers", 8 * (16 * MIB + 1), 240),
    ],
)
def test_what_is_read_takes_about_as_much_memory_as_it_has(measured: Any, name: str, found: int, most: int) -> None:
    told = measured[name]
    assert (told["raised"], told["found"]) == ("", found), told
    assert told["grew"] < most * MIB, told
