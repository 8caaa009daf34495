"""One zygote for all trials that are really run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.launch import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote.start() as zygote:
        yield zygote
