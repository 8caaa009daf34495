"""Takes the pictures of docs/view.md: python tests/view/screenshots.py docs/images"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path

import view_records
from PIL import Image
from playwright.sync_api import sync_playwright
from test_browser import SCALE, TUNE
from view_browser import FLAGS, Visit
from view_records import OTHER, TRAIN
from view_server import Served

SHOTS = {
    "view-runs": ("/", 1280, 560, "light"),
    "view-dashboard": (f"/run/{TRAIN}", 1280, 1500, "light"),
    "view-compare": (f"/compare?run={TRAIN}&run={OTHER}", 1280, 1100, "light"),
    "view-ranks": (f"/ranks/{TRAIN}", 1280, 900, "light"),
    "view-timeline": (f"/timeline/{TRAIN}?step=2&until=3", 1280, 900, "dark"),
    "view-ops": (f"/ops/{TRAIN}", 1280, 1000, "light"),
    "view-scale": (f"/run/{SCALE}", 1280, 800, "light"),
    "view-tune": (f"/run/{TUNE}", 1280, 800, "dark"),
    "view-phone": (f"/run/{TRAIN}", 390, 844, "dark"),
}


def main(folder: Path) -> None:
    view_records.EVIL = ""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, sync_playwright() as started:
        os.chdir(root)
        served = Served(view_records.make_all(Path(root) / "paceline-runs"))
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, (address, width, height, scheme) in SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(served.first)
            Visit(page, served.base).open(address)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(folder / f"{name}.png", optimize=True)
            context.close()
        browser.close()
        served.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
