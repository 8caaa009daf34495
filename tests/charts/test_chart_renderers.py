"""One chart, two renderers: every point is in the SVG and in what the browser gets."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline.charts.browser import figure
from paceline.charts.chart import Area, Axis, Band, Bars, Chart, HeatMap, Label, Line, Points, Rule, Shade
from paceline.charts.svg import COLOURS, write_svg
from paceline.charts.thin import POINTS, thinned
from paceline.view.server import render

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def chart(*series, **more) -> Chart:
    return Chart(name="c", title="A title", caption="How it was measured.", series=series, **more)


def drawn(made: Chart, tmp_path: Path) -> tuple[ET.Element, str]:
    path = tmp_path / "plots" / "chart.svg"
    write_svg([made], path, title="train.py")
    text = path.read_text()
    return ET.fromstring(text), text


def outline(svg: ET.Element, gid: str) -> np.ndarray:
    """The points of the first path of a series, in the SVG's own coordinates; y is upwards."""
    [group] = [each for each in svg.iter() if each.get("id") == gid]
    path = next(each.get("d") for each in group.iter() if each.tag.endswith("path"))
    found = np.array([float(number) for number in NUMBER.findall(path)]).reshape(-1, 2)
    return found * [1, -1]


def same_shape(a, b) -> None:
    """Equal but for a shift and a positive scale, which is what an axis does to numbers."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    assert a.shape == b.shape
    slope = (b[-1] - b[0]) / (a[-1] - a[0])
    assert slope > 0
    np.testing.assert_allclose(b, b[0] + slope * (a - a[0]), atol=0.01)


X, Y = [1, 2, 4, 8, 16], [3.0, 9.0, 4.0, 1.0, 7.0]


def test_a_line_with_error_bars_and_its_points(tmp_path):
    line = Line(name="l", x=X, y=Y, low=[y - 0.5 for y in Y], high=[y + 1 for y in Y], colour="data", markers=True)
    made = chart(line, Points(name="p", x=X, y=Y[::-1], colour="bad", text=list("abcde")))
    told = figure(made)["data"]
    assert (told[0]["x"], told[0]["y"]) == (X, Y)
    assert (told[1]["x"], told[1]["y"], told[1]["text"]) == (X, Y[::-1], list("abcde"))
    assert told[0]["error_y"]["array"] == [1] * 5
    assert told[0]["error_y"]["arrayminus"] == [0.5] * 5
    svg, _ = drawn(made, tmp_path)
    points = outline(svg, "c-0")
    same_shape(X, points[:, 0])
    same_shape(Y, points[:, 1])
    [group] = [each for each in svg.iter() if each.get("id") == "c-1"]
    marks = [(float(each.get("cx")), -float(each.get("cy"))) for each in group.iter() if each.tag.endswith("circle")]
    same_shape(X, [x for x, _ in marks])
    same_shape(Y[::-1], [y for _, y in marks])


def test_logarithmic_axes(tmp_path):
    made = chart(
        Line(name="l", x=X, y=Y, colour="data"), x=Axis(kind="log", ticks=[(4, "four")]), y=Axis(kind="log"),
        marks=[Label(x=4, y=1, text="here"), Rule(axis="x", at=4, name="the knee")],
    )  # fmt: skip
    layout = figure(made)["layout"]
    assert (layout["xaxis"]["type"], layout["xaxis"]["ticktext"]) == ("log", ["four"])
    # The page's script takes logarithms for annotations, but values for shapes.
    assert (layout["annotations"][0]["x"], layout["annotations"][0]["y"]) == (math.log10(4), 0)
    assert layout["shapes"][0]["x0"] == 4
    svg, text = drawn(made, tmp_path)
    points = outline(svg, "c-0")
    same_shape(np.log(X), points[:, 0])
    same_shape(np.log(Y), points[:, 1])
    assert "four" in text
    assert "here" in text


@pytest.mark.parametrize("horizontal", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_bars(tmp_path, horizontal, stacked):
    names, sizes = ["a", "b", "c"], [1.0, 3.0, 2.0]
    ends = {"x": sizes, "y": names} if horizontal else {"x": names, "y": sizes}
    kind = Axis(kind="category")
    made = chart(
        Bars(name="one", colour="data", horizontal=horizontal, **ends),
        Bars(name="two", colour="other", horizontal=horizontal, **ends),
        **{"y" if horizontal else "x": kind}, stacked=stacked,
    )  # fmt: skip
    told = figure(made)
    assert told["layout"]["barmode"] == ("relative" if stacked else "group")
    svg, _ = drawn(made, tmp_path)
    along = 0 if horizontal else 1
    lengths = []
    for number in range(2):
        assert told["data"][number]["x"] == ends["x"]
        assert told["data"][number]["y"] == ends["y"]
        bars = [outline(svg, f"c-{number}-{place}") for place in range(3)]
        lengths += [np.ptp(bar[:, along]) for bar in bars]
        starts = [bar[:, along].min() for bar in bars]
        assert (np.ptp(starts) > 1) == (stacked and number == 1), "on top of the bars before it"
    np.testing.assert_allclose(np.array(lengths) / lengths[0], sizes * 2, rtol=1e-4)


def test_bars_of_one_group_share_a_place(tmp_path):
    made = chart(
        *(Bars(name=name, x=["m", "n"], y=[1, 2], colour="data", group=group)
          for name, group in (("before", "before"), ("kept", "after"), ("not kept", "after"))),
        x=Axis(kind="category"),
    )  # fmt: skip
    assert [trace["offsetgroup"] for trace in figure(made)["data"]] == ["before", "after", "after"]
    svg, _ = drawn(made, tmp_path)
    before, kept, not_kept = (outline(svg, f"c-{n}-0")[:, 0].min() for n in range(3))
    assert before < kept == not_kept


def test_bands_and_areas(tmp_path):
    band = Band(name="b", x=X, low=[y - 1 for y in Y], high=[y + 1 for y in Y], colour="data")
    areas = [Area(name=name, x=X, y=Y, colour="data") for name in "pq"]
    told = figure(chart(band, *areas))["data"]
    assert told[0]["x"] == [*X, *X[::-1]]
    assert told[0]["y"] == [*band.high, *band.low[::-1]]
    assert [(each["x"], each["y"]) for each in told[1:]] == [(X, Y)] * 2
    svg, _ = drawn(chart(band), tmp_path)
    corners = outline(svg, "c-0")
    assert len(set(corners[:, 0].tolist())) == len(X)
    svg, _ = drawn(chart(*areas), tmp_path)
    lower, upper = (outline(svg, f"c-{n}")[:, 1].max() for n in range(2))
    assert upper > lower, "stacked"


def test_a_heat_map(tmp_path):
    cells = [[None, 7.25], [8.5, None]]
    heat = HeatMap(name="h", x=["to 0", "to 1"], y=["from 0", "from 1"], cells=cells, unit="GB/s", colours="rates")
    made = chart(heat, x=Axis(kind="category"), y=Axis(kind="category", reverse=True))
    told = figure(made)["data"][0]
    assert (told["x"], told["y"], told["z"]) == (list(heat.x), list(heat.y), cells)
    assert (told["zmin"], told["zmax"]) == (0, 8.5)
    _, text = drawn(made, tmp_path)
    for words in ("7.25", "8.5", "to 1", "from 0", "GB/s"):
        assert words in text


def test_text_and_names_of_a_record_are_only_text(tmp_path):
    name = '<b>&"\x1b[0m]]>'
    kind = Axis(kind="category")
    svg, _ = drawn(chart(Bars(name=name, x=[name, "d"], y=[1, 2], colour="data"), x=kind), tmp_path)
    assert '<b>&"?[0m]]>' in [each.text for each in svg.iter()]


def test_nothing_is_outside_its_picture(tmp_path):
    made = [
        chart(Line(name="flat", x=[1, 1], y=[2.0, 2.0], colour="data")),
        chart(Line(name="none", x=[], y=[], colour="data")),
        chart(Line(name="holes", x=X, y=[None] * 5, colour="data"), y=Axis(kind="log")),
        chart(Bars(name="none", x=[], y=[], colour="data"), x=Axis(kind="category")),
        chart(Line(name="wide", x=[0.001, 1e9], y=[-1e-9, 1e12], colour="data", markers=True), x=Axis(kind="log")),
        chart(Bars(name="n" * 90, x=["m" * 90], y=[1], colour="data"), x=Axis(kind="category")),
        chart(*(Line(name=f"series {n}", x=X, y=Y, colour="data") for n in range(20)), y=Axis(limits=(2, 5))),
    ]
    path = tmp_path / "chart.svg"
    write_svg(made, path, title="train.py")
    svg = ET.parse(path).getroot()
    width, height = (float(svg.get(side)) for side in ("width", "height"))
    assert "nan" not in path.read_text()
    inside = {id(each) for clipped in svg.iter() if clipped.get("clip-path") for each in clipped.iter()}
    for each in svg.iter():
        for across, down in (("x", "y"), ("cx", "cy")):
            if each.get(across) is not None and id(each) not in inside:
                assert 0 <= float(each.get(across)) <= width
                assert 0 <= float(each.get(down)) <= height


def test_marks_titles_and_captions(tmp_path):
    made = chart(
        Line(name="measured", x=X, y=Y, colour="data"),
        x=Axis(title="workers"),
        y=Axis(title="samples/s", zero=True),
        marks=[Rule(axis="y", at=5, name="target"), Shade(start=1, end=2, name="warm-up"), Label(x=2, y=9, text="top")],
    )
    layout = figure(made)["layout"]
    assert layout["yaxis"]["rangemode"] == "tozero"
    assert [(each["name"], each["showlegend"]) for each in layout["shapes"]] == [("target", True), ("warm-up", True)]
    assert layout["showlegend"]
    _, text = drawn(made, tmp_path)
    words = ("train.py", "A title", "How it was measured.", "workers", "samples/s", "target", "warm-up", "top")
    assert [each for each in words if each not in text] == []


def test_a_gap_stays_a_gap(tmp_path):
    made = chart(Line(name="l", x=X, y=[1.0, None, 3.0, 4.0, 5.0], colour="data"))
    assert figure(made)["data"][0]["y"][1] is None
    svg, _ = drawn(made, tmp_path)
    assert len(outline(svg, "c-0")) == 4


def test_long_names_stay_apart():
    long = ["x" * 60 + end for end in "ab"]
    made = chart(
        Bars(name="<b>", x=[1, 2], y=long, colour="data", horizontal=True),
        y=Axis(kind="category"),
    )
    told = figure(made)
    assert told["layout"]["yaxis"]["categoryarray"] == long
    assert all(len(text) == 44 for text in told["layout"]["yaxis"]["ticktext"])


def test_what_the_browser_gets_is_json():
    made = chart(Line(name="l", x=X, y=[math.nan, *Y[1:]], colour="data"))
    assert json.loads(msgspec.json.encode(figure(made)))["data"][0]["y"][0] is None


def test_a_long_line_is_thinned_and_keeps_its_peaks():
    values = [math.sin(n / 50) for n in range(100_000)]
    values[54_321], values[67_890] = 9.0, -9.0
    line = thinned(Line(name="l", x=range(len(values)), y=values, colour="data"))
    assert len(line.x) == len(line.y) <= POINTS
    assert {(54_321, 9.0), (67_890, -9.0)} <= set(zip(line.x, line.y, strict=True))
    short = Line(name="l", x=X, y=Y, colour="data")
    assert thinned(short) is short


def test_the_svg_has_the_colours_of_the_pages():
    light = (render.STATIC / "app.css").read_text().partition("}")[0]
    assert {name: re.search(rf"--{name}: ([^;]+);", light)[1] for name in COLOURS} == COLOURS
