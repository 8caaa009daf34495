"""What can be typed after `paceline view`, and what comes of it."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from paceline.record import Outcome, Run, write_run


@pytest.fixture
def records(tmp_path, monkeypatch) -> Path:
    """A folder of one record, and nothing else, where the command is typed."""
    folder = tmp_path / "paceline-runs" / "2026-11-15T10-22-31-train"
    folder.mkdir(parents=True)
    outcome = Outcome(exit_code=0, seconds=1.0)
    write_run(folder, Run(paceline="0", verb="run", script="train.py", arguments=[], settings={}, outcome=outcome))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "paceline-runs"


def test_help_begins_with_an_example(paceline_):
    code, out, _ = paceline_("view", "--help")
    assert code == 0
    assert out.strip().startswith("Example: paceline view")


def test_other_machines_need_a_token(paceline_, records):
    code, out, err = paceline_("view", "--host", "0.0.0.0")
    assert code == 2
    assert out == ""
    assert "--token-file" in err


@pytest.mark.parametrize("token", ["short", "with a blank in the middle of it", "é" * 20])
def test_a_token_must_be_hard_to_guess(paceline_, records, token):
    code, _, err = paceline_("view", "--token", token)
    assert code == 2
    assert "16" in err


def test_a_token_is_read_from_a_file_that_nobody_else_may_read(paceline_, records, tmp_path):
    secret = tmp_path / "token"
    code, _, err = paceline_("view", "--token-file", str(secret))
    assert code == 2
    assert "No such file" in err
    secret.write_text("short\n")
    secret.chmod(0o644)
    code, _, err = paceline_("view", "--token-file", str(secret))
    assert code == 2
    assert f"chmod 600 {secret}" in err
    secret.chmod(0o600)
    code, _, err = paceline_("view", "--token-file", str(secret))
    assert code == 2
    assert "16" in err
    code, _, err = paceline_("view", "--token-file", str(secret), "--token", "a" * 20)
    assert code == 2
    assert "both" in err


def test_the_browser_is_not_given_the_token_in_its_arguments(records, tmp_path):
    """Every account can read the arguments of every process: they name a private page that leads on."""
    told, browser = tmp_path / "told", tmp_path / "browser"
    os.mkfifo(told)
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {told}\n')
    browser.chmod(0o700)
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "view", "--open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "BROWSER": f"{browser} %s"},
    ) as process:
        try:
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in range(3))
            token = re.search(r"token=(\S{20,})", printed)[1]
            arguments = told.read_text().strip()  # waits for the browser
            assert token not in arguments
            assert arguments.startswith("file:///")
            page = Path(arguments.removeprefix("file://"))
            assert stat.S_IMODE(page.stat().st_mode) == 0o600
            assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
            address = html.unescape(re.search(r"href=\"(.*)\"", page.read_text())[1])
            assert token in address
            asked = urllib.request.Request(address, headers={"Accept": "text/html"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                # Not a redirect: a browser that comes from a file would not send the cookie along.
                assert "paceline_" in answer.headers["Set-Cookie"]
                assert 'http-equiv="refresh" content="0; url=/"' in answer.read().decode()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert not page.parent.exists()
        finally:
            process.kill()


def test_no_records_is_said(paceline_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = paceline_("view")
    assert code == 2
    assert "paceline run -n 2 train.py" in err
    code, _, err = paceline_("view", "nowhere")
    assert code == 2
    assert "run.json" in err
    code, _, err = paceline_("view", "--export", "report.html", "--record", str(tmp_path))
    assert code == 2
    assert "no record" in err


def test_a_port_that_is_taken_is_said(paceline_, records):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = paceline_("view", "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "cannot listen" in err


@pytest.mark.parametrize("named", [[], ["paceline-runs/2026-11-15T10-22-31-train"]])
def test_a_report_is_written(paceline_, records, named):
    code, out, _ = paceline_("view", "--export", "report.html", "--json", *named)
    assert code == 0
    told = json.loads(out)
    text = Path("report.html").read_text()
    assert told["bytes"] == len(text.encode())
    assert told["verb"] == "view"
    assert "2026-11-15T10-22-31-train" in text
    assert "sha256-" in text


def test_a_report_that_cannot_be_written_is_said(paceline_, records):
    code, _, err = paceline_("view", "--export", "nowhere/report.html")
    assert code == 2
    assert "nowhere/report.html" in err


def test_it_serves_until_it_is_interrupted(records):
    """As a person types it: the address it prints works, the one without the token does not, Ctrl-C ends it well."""
    with subprocess.Popen(
        [sys.executable, "-m", "paceline", "view"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ) as process:
        try:
            assert process.stdout is not None
            told = "".join(process.stdout.readline() for _ in range(3))
            found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S{20,}", told)
            assert found, told
            with urllib.request.urlopen(found[0], timeout=60) as answer:
                assert "2026-11-15T10-22-31-train" in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(found[0].partition("?")[0], timeout=60)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()
