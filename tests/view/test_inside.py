"""Links, FIFOs, sockets and folders in the place of a record's files: nothing outside is shown, nothing blocks, and the
other pages and records stay as they are."""

from __future__ import annotations

import os
import socket

import pytest
from view_records import TRAIN, make_run, make_series, trace

from paceline.errors import NotRegularError, PacelineError
from paceline.record import Step, StepWriter, read_run, read_steps
from paceline.record.inside import Folder
from paceline.view.records.library import Library
from paceline.view.server.export import export

SECRET = "the-secret-of-somebody-else"
pytestmark = pytest.mark.timeout(120)  # a FIFO that is opened blocks for ever


def put_link(path, secret):
    path.symlink_to(secret)


def put_fifo(path, secret):
    os.mkfifo(path)


def put_socket(path, secret):
    with socket.socket(socket.AF_UNIX) as made:
        # Its address may have some 100 letters: relative to the folder it is short.
        here = os.open(path.parent, os.O_RDONLY)
        try:
            made.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def put_folder(path, secret):
    path.mkdir()


KINDS = {"link": put_link, "fifo": put_fifo, "socket": put_socket, "folder": put_folder}
# Which page shows a file.
FILES = {
    "run.json": "run",
    "steps.rank0.jsonl": "iterations",
    "log.rank0.txt": "logs",
    "findings.json": "run",
    "devices.jsonl": "devices",
    "trace.rank0.json.gz": "ops",
    "timeline.rank0.jsonl": "timeline",
}


@pytest.fixture
def library(tmp_path):
    """A good record and one to be harmed, and a file outside that would be a fine log."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(f"{SECRET}\n")
    root = tmp_path / "records"
    make_run(root / TRAIN, steps=5, ranks=1)
    make_run(root / "bad", steps=5, ranks=1)
    return root


@pytest.mark.crossed("kind")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", FILES)
def test_what_is_no_regular_file_is_told_and_not_opened(library, client_of, file, kind):
    harmed = library / "bad" / file
    harmed.unlink(missing_ok=True)
    KINDS[kind](harmed, library.parent / "outside" / "secret")
    client = client_of(library)
    answer = client.get(f"/{FILES[file]}/bad")
    assert answer.status_code in (200, 422)
    assert file in answer.text
    assert "is a" in answer.text
    assert "Only regular files" in answer.text
    assert client.get("/").status_code == 200
    assert client.get(f"/run/{TRAIN}").status_code == 200
    for page in ("run", "logs", "iterations", "devices", "timeline", "ops", "csv/iterations/iterations", "live"):
        answer = client.get(f"/{page}/bad")
        assert answer.status_code < 500
        assert SECRET not in answer.text
    if file != "run.json":
        _, size = export(library, "bad", library.parent / "report.html")
        assert size
        assert SECRET not in (library.parent / "report.html").read_text()


def test_a_verdict_and_a_patch_that_are_links_are_not_followed(library, client_of):
    make_series(library / "tuned", "tune", {"mods": [], "noise": 0.0, "trials": 0, "spent": 0.0})
    (library / "tuned" / "tuned.patch").symlink_to(library.parent / "outside" / "secret")
    answer = client_of(library).get("/run/tuned")
    assert answer.status_code == 200
    assert "tuned.patch is a symbolic link" in answer.text
    assert SECRET not in answer.text
    (library / "tuned" / "verdict.json").rename(library.parent / "outside" / "verdict.json")
    (library / "tuned" / "verdict.json").symlink_to(library.parent / "outside" / "verdict.json")
    answer = client_of(library).get("/run/tuned")
    assert answer.status_code == 200, "the page shows the rest of the record"
    assert "verdict.json is a symbolic link" in answer.text


def test_files_beside_the_traces_that_rules_look_at_do_not_block(library, client_of):
    trace(0, 1).write(library / "bad" / "trace.rank0.json.gz")
    for name in ("facts.rank0.json", "pipelines.rank0.jsonl"):
        os.mkfifo(library / "bad" / name)
    assert client_of(library).get("/ops/bad").status_code == 200


def test_a_record_that_is_a_link_is_not_listed_and_says_why(library, client_of):
    make_run(library.parent / "outside" / "record", steps=2, ranks=1, script=SECRET)
    (library / "link").symlink_to(library.parent / "outside" / "record")
    (library / "inner").symlink_to(library / TRAIN)
    (library / "bad" / "trials").symlink_to(library.parent / "outside")
    client = client_of(library)
    assert SECRET not in client.get("/").text
    assert Library(library).names() == ["bad", TRAIN]
    for name in ("link", "inner", "bad/trials/record"):
        answer = client.get(f"/run/{name}")
        assert answer.status_code == 422
        assert "is a symbolic link" in answer.text
        assert SECRET not in answer.text
    assert client.get("/run/bad").status_code == 200


def test_the_folder_that_a_person_names_may_be_a_link(library, client_of):
    (library.parent / "named").symlink_to(library)
    client = client_of(library.parent / "named")
    assert client.get(f"/logs/{TRAIN}").status_code == 200
    assert "rank 0 was here" in client.get(f"/logs/{TRAIN}").text
    assert read_run(library.parent / "named" / TRAIN).script == "train.py"


def test_a_folder_that_becomes_a_link_after_it_was_opened_leads_nowhere(library):
    record = Library(library).open("bad")
    make_run(library.parent / "outside" / "record", steps=3, ranks=1)
    (library / "bad").rename(library.parent / "aside")
    (library / "bad").symlink_to(library.parent / "outside" / "record")
    with pytest.raises(NotRegularError, match="symbolic link"):
        _ = record.steps
    with pytest.raises(NotRegularError):
        record.folder.names()


def test_a_file_that_becomes_a_link_between_the_look_and_the_opening_is_refused(library, monkeypatch):
    """The look before opening only spares devices: what counts is asked of the descriptor."""
    from paceline.record import inside

    log = library / "bad" / "log.rank0.txt"
    seen = os.stat(log)
    log.unlink()
    log.symlink_to(library.parent / "outside" / "secret")
    looks = iter([seen])
    monkeypatch.setattr(inside, "stat_at", lambda *args, **kwargs: next(looks, None) or os.stat(*args, **kwargs))
    with pytest.raises(NotRegularError, match="symbolic link"):
        Folder(library).folder("bad").file("log.rank0.txt").open()
    log.unlink()
    os.mkfifo(log)
    looks = iter([seen])
    with pytest.raises(NotRegularError, match="FIFO"):
        Folder(library).folder("bad").file("log.rank0.txt").open()


def test_readers_of_a_record_follow_no_link_either(tmp_path):
    writer = StepWriter(tmp_path / "elsewhere.jsonl")
    writer.append(
        Step(step=1, at=0, samples=1, total=1, data=0, forward=0, backward=0, communication=0, optimizer=0, loss=1)
    )
    writer.close()
    (tmp_path / "steps.rank0.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(NotRegularError):
        read_steps(tmp_path, 0)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../secret", "a\0b"])
def test_a_name_is_one_part_of_a_path(tmp_path, name):
    with pytest.raises(PacelineError):
        Folder(tmp_path).file(name)
    with pytest.raises(PacelineError):
        Folder(tmp_path).folder(name)


def test_no_descriptor_is_left_open(library, client_of):
    for number, put in enumerate(KINDS.values()):
        put(library / "bad" / f"timeline.rank{number}.jsonl", library.parent / "outside" / "secret")
    client = client_of(library)

    def look():
        for page in ("run", "logs", "timeline", "iterations", "trials"):
            client.get(f"/{page}/bad")

    look()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        look()
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the client's own
