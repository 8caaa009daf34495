"""README and docs: links and anchors lead somewhere, code names the package as users should, the site builds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"\]\(<?([^)>\s]+)>?(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")
ALIAS = re.compile(r"import paceline(\.data)? as p[dl]\b|(?<![\w.])p[dl]\.[a-zA-Z_]")


def prose(path: Path) -> str:
    """A page without its blocks of code: brackets there are not links, and # not headings."""
    return re.sub(r"^(?: {4}|\t).*$", "", FENCE.sub("", path.read_text()), flags=re.M)


def github_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def site_anchor(heading: str) -> str:
    """As Python-Markdown makes it."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub and the site agree on."""
    headings = re.findall(r"^#{1,6} (.+?)\s*$", prose(path), re.M)
    text = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings]
    return {github_anchor(heading) for heading in text} & {site_anchor(heading) for heading in text}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in (a or b for a, b in LINK.findall(prose(path))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            broken.append(f"{path.name}: {link}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            broken.append(f"{path.name}: {link}: no such heading")
    return broken


def test_links_and_anchors_lead_somewhere() -> None:
    assert [line for page in PAGES for line in broken_links(page)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here\n\n[a](#here) [b](#there) [c](missing.md) [d](page.md#here)\n\n    [e](in-code.md)\n")
    assert broken_links(page) == ["page.md: #there: no such heading", "page.md: missing.md: no such file"]


def test_no_alias_that_means_pandas_or_polars() -> None:
    files = [*PAGES, *sorted((ROOT / "examples").glob("*.py"))]
    assert [
        f"{file.name}: {line}" for file in files for line in file.read_text().splitlines() if ALIAS.search(line)
    ] == []


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f": {page.name}\n" not in nav] == []


def test_badges_say_what_the_package_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    (torch,) = (need.partition(">=")[2] for need in project["dependencies"] if need.startswith("torch>="))
    told = {"licence": project["license"], "python": " | ".join(versions), "torch": f"{torch} or newer"}
    for name, text in told.items():
        assert f">{text}<" in (ROOT / "docs" / "images" / f"badge-{name}.svg").read_text(), name


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    loads = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    assert [found for page in tmp_path.rglob("*.html") for found in loads.findall(page.read_text())] == []
    for name in ("commands/run.html", "commands/doctor.html", "api/paceline.html", "api/data.html"):
        assert (tmp_path / name).is_file(), name
    assert "--batch-dim" in (tmp_path / "commands/run.html").read_text()
    assert "LAMB" in (tmp_path / "api/paceline.html").read_text()
    # What people type into the search, and the contents of a long page.
    found = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    assert any(entry["location"] == "elastic.html#resume-after-preemption" for entry in found)
    long, short = ((tmp_path / name).read_text() for name in ("same-numbers.html", "demo.html"))
    assert "<strong>On this page:</strong>" in long
    assert "<strong>On this page:</strong>" not in short
    doors = (tmp_path / "index.html").read_text()
    assert [door for door in ("Run it", "Understand it", "Make it faster", "On a cluster") if door not in doors] == []


def test_the_navigation_names_every_page():
    """`make docs` ended with a warning: a page of figures was in no menu."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    there = [f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.md")]
    there += [path.name for path in (ROOT / "docs").glob("*.md")]
    assert not [page for page in there if f" {page}\n" not in nav]


def test_continuous_integration_builds_the_site():
    found = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    assert "run: make docs" in found


def test_every_claim_about_another_tool_has_its_source() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.index("## How it works") < readme.index("## Compared with other tools")
    table = readme.partition("## Compared with other tools")[2].partition("## Known limits")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    known = {"–", "maintained", "as DDP", "as torchrun"}
    known |= {"of one rank, unless you collect them"}
    bare = [cell for row in rows[1:] for cell in row[2:] if cell not in known and "](https://" not in cell]
    assert bare == []
    assert {len(row) for row in rows[1:]} == {7}


def test_readme_and_guide_agree_on_elastic_runs() -> None:
    readme, guide = ((ROOT / name).read_text() for name in ("README.md", "docs/elastic.md"))
    assert "## Several hosts" in guide
    assert "for `mirrored` on one host" not in " ".join(readme.split())
