"""Nobody gets anything without the token, and nothing outside the folder of records is reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from view_records import TOKEN, TRAIN, make_run

from paceline.errors import RecordError
from paceline.view.records.library import Library
from paceline.view.server.site import PAGES

ADDRESSES = [
    "/",
    f"/run/{TRAIN}",
    "/static/app.js",
    "/static/charts.js",
    f"/csv/run/steps/{TRAIN}",
    "/compare?run=a&run=b",
    "/nothing/here",
    *(f"/{kind.key}/{TRAIN}" for kind in PAGES),
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_needs_the_token(records, client_of, address):
    stranger = client_of(records, token="")
    assert stranger.get(address).status_code == 401
    assert TRAIN not in stranger.get(address).text
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "é" * 20):
        assert stranger.get(address, params={"token": wrong}).status_code == 401
        assert stranger.get(address, headers={"Authorization": f"Bearer {wrong}".encode()}).status_code == 401
        assert stranger.get(address, headers={"Cookie": f"paceline_80={wrong}".encode()}).status_code == 401


def test_the_printed_address_becomes_a_cookie_and_leaves_the_address_bar(records, client_of):
    visitor = client_of(records, token="")
    first = visitor.get(f"/?token={TOKEN}&q=a", headers={"Accept": "text/html"}, follow_redirects=False)
    assert first.status_code == 303
    assert first.headers["location"] == "/?q=a"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "SameSite=strict" in first.headers["set-cookie"]
    assert visitor.get(f"/run/{TRAIN}").status_code == 200  # with the cookie


def test_a_page_on_the_disk_leads_to_a_page_of_ours_first(records, client_of):
    """A browser does not send a strict cookie as long as it follows a link of a file, redirects included."""
    visitor = client_of(records, token="")
    headers = {"Accept": "text/html"}
    first = visitor.get(f"/run/{TRAIN}?step=1&token={TOKEN}&from=file", headers=headers, follow_redirects=False)
    assert first.status_code == 200
    assert f'content="0; url=/run/{TRAIN}?step=1"' in first.text
    assert TOKEN not in first.text
    assert "SameSite=strict" in first.headers["set-cookie"]
    evil = visitor.get(f'/x"><script>?token={TOKEN}&from=file', headers=headers, follow_redirects=False)
    assert "<script>" not in evil.text
    refused = visitor.get("/?token=wrong&from=file", headers={**headers, "Cookie": ""}, follow_redirects=False)
    assert refused.status_code == 401


def test_the_token_leads_nowhere_else(records, client_of):
    visitor = client_of(records, token="")
    moved = visitor.get(
        f"//example.com/?token={TOKEN}", headers={"Accept": "text/html"}, follow_redirects=False
    ).headers["location"]
    assert moved.startswith("/")
    assert not moved.startswith("//")


def test_only_our_own_scripts_may_run(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert client.get("/").headers["x-content-type-options"] == "nosniff"
    assert client.get("/").headers["referrer-policy"] == "no-referrer"


def test_another_name_for_this_machine_is_refused(client):
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/", headers={"Host": "localhost:1234"}).status_code == 200


def test_nothing_can_be_changed(client):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/").status_code == 405


OUTSIDE = [
    "",
    "%2e%2e/secret",
    "..%2fsecret",
    "..%2f..%2f..%2fetc",
    "/etc",
    "%2fetc",
    f"{TRAIN}/../../secret",
    f"{TRAIN}%2f..%2f..%2fsecret",
    "link",
    "link/secret",
    "a%00b",
    ".hidden",
    "x" * 5000,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_address_leads_out_of_the_folder(tmp_path, client_of, name):
    make_run(tmp_path / "secret", steps=2, ranks=1)
    root = tmp_path / "records"
    make_run(root / TRAIN, steps=2, ranks=1)
    make_run(root / ".hidden", steps=2, ranks=1)
    (root / "link").symlink_to(tmp_path / "secret")
    client = client_of(root)
    for kind in ("run", "csv/run/steps"):
        answer = client.get(f"/{kind}/{name}")
        assert answer.status_code in (404, 422), name
        assert "train.py --epochs" not in answer.text


def test_a_library_opens_only_what_lies_below_it(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "run.json").write_text("{}")
    library = Library(tmp_path / "inside")
    for name in ("../outside", "..", ".", "/../outside", str(tmp_path / "outside"), "a/../../outside"):
        with pytest.raises(RecordError):
            library.find(name)
    assert library.names() == []
    assert isinstance(library.root, Path)
