"""Somebody at a terminal: prompts, the debugger and the terminal's size, on two workers."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

SCRIPT = """
import os, shutil, subprocess, sys
import torch

rate = float(input("rate? "))
print("size", *os.get_terminal_size(), *shutil.get_terminal_size())
print("stty", subprocess.run(["stty", "size"], capture_output=True, text=True).stdout.strip())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(3):
    loss = model(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 1:
        breakpoint()
print("rest", repr(sys.stdin.read()))
print("rate", optimizer.param_groups[0]["lr"])
"""


class Terminal:
    """`paceline` on a terminal of 33 lines with 101 columns, and what it has shown."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
        )
        os.close(theirs)
        self.shown, self._read = "", 0

    def until(self, text: str, seconds: float = 90) -> None:
        """Until the text is there, behind the one before."""
        end = time.monotonic() + seconds
        while (at := self.shown.find(text, self._read)) < 0:
            assert time.monotonic() < end, f"{text!r} did not come:\n{self.shown}"
            assert self._take(), f"{text!r} never came:\n{self.shown}"
        self._read = at + len(text)

    def watch(self, seconds: float) -> None:
        """Shows what comes in this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._take():
            pass

    def type(self, text: str) -> None:
        os.write(self.own, text.encode())

    def end(self) -> int:
        while self._take():
            pass
        os.close(self.own)
        return self.process.wait(60)

    def _take(self) -> bool:
        if select.select([self.own], [], [], 0.1)[0]:
            try:
                data = os.read(self.own, 65536)
            except OSError:  # the other side is closed
                return False
            self.shown += data.decode(errors="replace")
        return True


def test_prompts_and_the_debugger_work_with_two_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    terminal = Terminal(tmp_path, "run", "-n", "2", "--stall-warning", "3", "--stall-abort", "60", "train.py")
    terminal.until("rate? ")
    terminal.watch(4.5)  # a person thinks for longer than a stalled worker may
    terminal.type("0.25\n")
    terminal.until("size 101 33 101 33")
    terminal.until("stty 33 101")
    terminal.until("(Pdb) ")
    terminal.type("p step * 100\n")
    terminal.until("100")
    terminal.until("(Pdb) ")
    terminal.watch(4.5)
    at_the_prompt = terminal.shown
    terminal.type("c\n")
    terminal.type("last words\n\x04")
    terminal.until("rest 'last words\\n'")
    terminal.until("rate 0.25")
    code = terminal.end()
    assert code == 0, terminal.shown
    assert "No step for" not in terminal.shown
    assert "Stalled" not in terminal.shown
    assert at_the_prompt.endswith("(Pdb) "), "nothing is drawn over a prompt"
    (record,) = (tmp_path / "paceline-runs").iterdir()
    log = (record / "log.rank1.txt").read_text()
    for line in ("size 101 33 101 33", "stty 33 101", "(Pdb) 100", "rest 'last words\\n'", "rate 0.25"):
        assert line in log
