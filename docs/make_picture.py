"""Makes the pictures of the README and of the architecture: `make picture`.

python docs/make_picture.py rooms docs/images/rooms.svg          # the rooms of src/paceline, and who imports whom
python docs/make_picture.py same docs/images/same-numbers.svg    # examples/cnn.py under plain Python and on workers
python docs/make_picture.py dashboard docs/images/dashboard.png  # a profile of it in `paceline view`; needs chromium

The figures in the last two are those of the machine that took them.
"""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACELINE = [sys.executable, "-m", "paceline"]
SCRIPT = ["examples/cnn.py", "--epochs", "1", "--train-size", "10240", "--test-size", "1000"]
WIDTH, HEIGHT = 1280, 650  # pixels of the dashboard
WORKERS = min(4, len(os.sched_getaffinity(0)))
IN_WORKERS = (
    *("agreement", "checkpoint", "comm", "converge", "data", "mods", "profile", "script", "spread", "strategies"),
    "wire",
)
LETTER, LINE = 7.6, 19  # pixels of a letter and of a line in the terminals


def main(what: str, picture: Path) -> None:
    picture.write_bytes({"rooms": rooms, "same": same_numbers, "dashboard": dashboard}[what]())


def rooms() -> bytes:
    """A box for each room, above all that it imports; a line to each room below that it does not reach by another."""
    imported = imports_of_rooms()
    reached: dict[str, set[str]] = {}
    level: dict[str, int] = {}
    for room in TopologicalSorter(imported).static_order():
        reached[room] = imported[room].union(*(reached[other] for other in imported[room]))
        level[room] = max((level[other] + 1 for other in imported[room]), default=0)
    top, wide, tall, row = max(level.values()), 124, 30, 64
    places = {}
    for step in range(top + 1):
        here = sorted(room for room, at in level.items() if at == step)
        for number, room in enumerate(here):
            places[room] = 380 + (number - (len(here) - 1) / 2) * (wide + 22), 16 + (top - step) * row
    size = {"width": "760", "height": str(32 + top * row + tall)}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    ET.SubElement(svg, "rect", size, rx="8", fill="#f6f7f9")
    for room, below in imported.items():
        for other in below - set().union(*(reached[one] for one in below)):
            (x, y), (a, b) = places[room], places[other]
            line = {"x1": f"{x:.0f}", "y1": f"{y + tall:.0f}", "x2": f"{a:.0f}", "y2": f"{b:.0f}"}
            ET.SubElement(svg, "line", line, stroke="#9aa3b5")
    for room, (x, y) in sorted(places.items()):
        box = {"x": f"{x - wide / 2:.0f}", "y": f"{y:.0f}", "width": str(wide), "height": str(tall)}
        ET.SubElement(svg, "rect", box, rx="6", fill="#e4e9fb" if room in IN_WORKERS else "#ffffff", stroke="#4a5bb5")
        text = ET.SubElement(svg, "text", x=f"{x:.0f}", y=f"{y + 20:.0f}", fill="#1c2330")
        text.attrib |= {"font-family": "system-ui, sans-serif", "font-size": "14", "text-anchor": "middle"}
        text.text = room
    return ET.tostring(svg, encoding="utf-8")


def imports_of_rooms() -> dict[str, set[str]]:
    """Of each folder of the package, the other ones that its files import."""
    folders = {path.name: path for path in (ROOT / "src" / "paceline").iterdir() if (path / "__init__.py").exists()}
    found: dict[str, set[str]] = {name: set() for name in folders}
    for name, folder in folders.items():
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    modules = [f"{node.module}.{alias.name}" for alias in node.names]
                found[name].update(each.split(".")[1] for each in modules if each.startswith("paceline."))
        found[name] = found[name] & set(folders) - {name}
    return found


def same_numbers() -> bytes:
    """Two terminals side by side: plain Python on one core, and the same script on a worker for each core."""
    plain = timed([sys.executable, *SCRIPT])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--record", folder, "-n", str(WORKERS), "--threads", "1"]
        spread = timed([*PACELINE, "run", *options, *SCRIPT])
    name = "cnn.py"
    return terminals((f"$ python {name}", *plain), (f"$ paceline run -n {WORKERS} {name}", *spread))


def timed(command: list[str]) -> tuple[list[str], float]:
    """What a command prints, and how long it takes; each process has one core."""
    begun = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines(), time.perf_counter() - begun


def terminals(*shown: tuple[str, list[str], float]) -> bytes:
    lines = [[command, *printed, "", f"{seconds:.1f} s"] for command, printed, seconds in shown]
    wide = max(len(line) for told in lines for line in told) * LETTER + 32
    tall = (max(map(len, lines)) + 1) * LINE + 24
    size = {"width": f"{len(shown) * (wide + 12):.0f}", "height": f"{tall:.0f}"}
    svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    for place, told in enumerate(lines):
        left = place * (wide + 12)
        ET.SubElement(svg, "rect", x=f"{left:.0f}", width=f"{wide:.0f}", height=size["height"], rx="8", fill="#1c2330")
        for number, line in enumerate(told):
            colour = "#7fd1a8" if number in (0, len(told) - 1) else "#e3e6ec"
            text = ET.SubElement(svg, "text", x=f"{left + 16:.0f}", y=f"{(number + 1) * LINE + 14}", fill=colour)
            text.attrib |= {"font-family": "ui-monospace, monospace", "font-size": "12.5", "xml:space": "preserve"}
            text.text = line
    return ET.tostring(svg, encoding="utf-8")


def dashboard() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        profile = [*PACELINE, "profile", "-n", "2", "--to-the-end", *SCRIPT]
        environment = os.environ | {"PACELINE_RECORD": folder}  # the picture shows the command
        subprocess.run(profile, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        (record,) = Path(folder).iterdir()
        viewer = subprocess.Popen([*PACELINE, "view", "--json", record], stdout=subprocess.PIPE, text=True)
        try:
            assert viewer.stdout is not None
            document = "".join(iter(viewer.stdout.readline, "}\n")) + "}"
            return screenshot(json.loads(document)["url"])
        finally:
            viewer.terminate()
            viewer.wait()


def screenshot(address: str) -> bytes:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", device_scale_factor=2
        )
        page.goto(address)
        page.wait_for_load_state("networkidle")
        found = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    small = io.BytesIO()
    found.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
