"""plotly.js: small, licensed, served compressed, and in a report compressed."""

from __future__ import annotations

import gzip
import re

from view_records import TRAIN

from paceline.view.records.library import Library
from paceline.view.server.export import export
from paceline.view.ui import render


def test_it_is_small_and_keeps_its_licence():
    packed = render.PLOTLY.read_bytes()
    assert len(packed) < 600_000
    head = gzip.decompress(packed)[:200].decode()
    version = re.search(r"plotly\.js \(cartesian - minified\) v([\d.]+)", head)[1]
    assert "Licensed under the MIT license" in head
    assert f"plotly.js {version}," in (render.STATIC / "README.md").read_text()
    assert "Permission is hereby granted" in (render.STATIC / "plotly-cartesian.LICENSE").read_text()


def test_it_is_served_compressed(client):
    answer = client.get("/static/plotly.js", headers={"Accept-Encoding": "br, gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == render.PLOTLY.stat().st_size
    assert answer.headers["content-type"].startswith("text/javascript")
    plain = client.get("/static/plotly.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content == gzip.decompress(render.PLOTLY.read_bytes())


def test_a_report_holds_it_compressed(records, tmp_path):
    _, size = export(records, TRAIN, tmp_path / "report.html")
    assert size < 2_000_000
    text = (tmp_path / "report.html").read_text()
    assert "Licensed under the MIT license" not in text
    assert 'id="plotly">H4sI' in text


def test_a_report_without_charts_does_not_hold_it(tmp_path):
    from view_records import make_series

    make_series(tmp_path / "records" / "a", "doctor", {})
    assert Library(tmp_path / "records").open("a").run.verb == "doctor"
    export(tmp_path / "records", "a", tmp_path / "report.html")
    assert 'id="plotly"' not in (tmp_path / "report.html").read_text()
