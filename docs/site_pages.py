"""mkdocs hook: pages that are made when the site is built, from what they describe.

A page for each verb comes from the verb's own help, the API reference from the public names, and the pages of figures
and of changes from their files outside of docs/. None of them is committed a second time.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import paceline
import paceline.data
from paceline.cli.app import commands

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    **{f"benchmarks/{p.name}": f"benchmarks/{p.name}" for p in (ROOT / "benchmarks").glob("*.md")},
}
LONG = 900  # words: about three screens
GUIDES = {"topo": "topology"}  # a verb whose guide is not called like the verb


def on_config(config: MkDocsConfig) -> None:
    """Lists a page for each verb where the navigation says `commands`."""
    verbs = [{verb: f"commands/{verb}.md"} for verb in command_pages(set())]
    config.nav = _with_verbs(config.nav, verbs)


def _with_verbs(nav: Any, verbs: list[dict[str, str]]) -> Any:
    if nav == "commands":
        return verbs
    if isinstance(nav, list):
        return [_with_verbs(entry, verbs) for entry in nav]
    return {title: _with_verbs(entry, verbs) for title, entry in nav.items()} if isinstance(nav, dict) else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to those of docs/."""
    guides = {Path(file.src_uri).stem for file in files.documentation_pages()}
    pages = {f"commands/{verb}.md": text for verb, text in command_pages(guides).items()}
    pages["api/paceline.md"] = api_page(paceline, "The package's own names. `import paceline` imports no torch.")
    pages["api/data.md"] = api_page(paceline.data, "Input pipelines. The guide is [Input pipelines](../data.md).")
    pages |= {there: (ROOT / here).read_text() for here, there in ELSEWHERE.items()}
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links of docs/ that leave it lead to the generated page of that file, and are plain text where it has none. A
    long page begins with its contents."""
    if "/" in page.file.src_uri:
        return markdown
    sections = re.findall(r"^## (.+)$", markdown, re.MULTILINE)
    if len(markdown.split()) > LONG and len(sections) > 2:
        listed = " · ".join(f"[{title}](#{slugify(_plain(title), '-')})" for title in sections)
        heading, _, rest = markdown.partition("\n")
        markdown = f"{heading}\n\n**On this page:** {listed}\n{rest}"
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)", _moved, markdown)


def _plain(title: str) -> str:
    return re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", title)


def _moved(link: re.Match[str]) -> str:
    text, target, anchor = link.groups()
    return f"[{text}]({ELSEWHERE[target]}{anchor or ''})" if target in ELSEWHERE else text


def command_pages(guides: set[str]) -> dict[str, str]:
    """The Markdown of each verb's page, by verb."""
    program: Any = commands()
    top = program.make_context("paceline", [], resilient_parsing=True)
    return {
        name: _command_page(command, _context(command, name, top), guides) for name, command in program.commands.items()
    }


def _context(command: Any, name: str, parent: Any) -> Any:
    return type(parent)(command, info_name=name, parent=parent)


def _command_page(command: Any, context: Any, guides: set[str], level: int = 1) -> str:
    name = context.info_name
    parts = [f"{'#' * level} `{context.command_path}`"]
    if examples := getattr(command, "examples", ()):
        parts.append("\n".join(f"    {line}" for line in examples))
    parts.append(str(command.help or ""))
    if (guide := GUIDES.get(name, name)) in guides and level == 1:
        parts.append(f"How it works, and what it prints: [the guide](../{guide}.md).")
    parts.append(f"    {command.get_usage(context).removeprefix('Usage: ')}")
    parts += _option_tables(command, context, level + 1)
    for sub, below in getattr(command, "commands", {}).items():
        parts.append(_command_page(below, _context(below, sub, context), guides, level + 1))
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def _option_tables(command: Any, context: Any, level: int) -> list[str]:
    """Each group of options has a heading, so that the page's contents list it."""
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or not (record := parameter.get_help_record(context)):
            continue
        kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
        left, right = (_cell(text) for text in record)
        panels.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(
            f"| <code>{left}</code> | {right} |"
        )
    return [f"{'#' * level} {panel}\n\n| | |\n|---|---|\n" + "\n".join(rows) for panel, rows in panels.items()]


def _cell(text: str) -> str:
    """Plain text as the cell of a table: its signs mean nothing to Markdown."""
    text = re.sub(r"\s*\[default: \((.*)\)", r" [default: \1", text)
    for sign, escaped in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ("|", "&#124;"),
        ("*", "&#42;"),
        ("_", "&#95;"),
        ("[", "&#91;"),
    ):
        text = text.replace(sign, escaped)
    return " ".join(text.split())


def api_page(module: Any, opening: str) -> str:
    """The reference of a module's public names, in the order of their kind: classes, then functions."""
    name = module.__name__
    here = [n for n in module.__all__ if not n.startswith("_") and not isinstance(getattr(module, n), ModuleType)]
    public = sorted(here, key=lambda n: (n[0].islower(), n.lower()))
    return f"# `{name}`\n\n{opening}\n\n" + "\n\n".join(f"::: {name}.{n}" for n in public) + "\n"
