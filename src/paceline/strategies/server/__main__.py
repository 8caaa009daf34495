"""`python -m paceline.strategies.server`: the supervisor of a run's servers. Its configuration is the first line of its
standard input, and it ends when its standard input is closed."""

from __future__ import annotations

import os
import sys

import msgspec

from paceline.strategies.server.config import ServerConfig
from paceline.strategies.server.supervisor import supervise

line = b""
while not line.endswith(b"\n"):
    byte = os.read(0, 1)  # not through a buffer, which would hide the end
    if not byte:
        sys.exit("paceline: no configuration on standard input")
    line += byte
supervise(msgspec.json.decode(line, type=ServerConfig), 0, os.dup(1))
