"""Takes the picture of the README: `make picture`, or python docs/make_picture.py docs/images/dashboard.png

Profiles examples/cnn.py on two workers, opens the record in `paceline view`, and takes a screenshot of its dashboard.
The figures in the picture are those of the machine that took it.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PACELINE = [sys.executable, "-m", "paceline"]
SCRIPT = ["examples/cnn.py", "--epochs", "1", "--train-size", "10240", "--test-size", "1000"]
WIDTH, HEIGHT = 1280, 650


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        profile = [*PACELINE, "profile", "-n", "2", "--to-the-end", "--record", folder, *SCRIPT]
        subprocess.run(profile, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (record,) = Path(folder).iterdir()
        viewer = subprocess.Popen([*PACELINE, "view", "--json", record], stdout=subprocess.PIPE, text=True)
        try:
            assert viewer.stdout is not None
            document = "".join(iter(viewer.stdout.readline, "}\n")) + "}"
            picture.write_bytes(screenshot(json.loads(document)["url"]))
        finally:
            viewer.terminate()
            viewer.wait()


def screenshot(address: str) -> bytes:
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
    main(Path(sys.argv[1]).resolve())
