"""The site's sources: a copy of ``docs/`` with links that work on the site, and the navigation that ``docs/README.md`` gives."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

import toolbus
from benchmarks.scale import report
from benchmarks.scale.costs import load
from benchmarks.scale.model import Demand
from benchmarks.scale.simulate import Server, limits
from toolbus.bus.telemetry import EVENTS, METRICS
from toolbus.bus.telemetry.metrics import EXPOSED
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.operations.cli import main
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import Table
from toolbus.operations.conformance.worker_checks import WORKER
from website.diagrams import as_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/toolbus/toolbus"

_FENCE = re.compile(r"^( *)(`{3,})(\w*)[^\n]*\n(.*?)^\1\2 *$\n?", re.DOTALL | re.MULTILINE)
# Code within a sentence comes first, so that what looks like a link in it is none.
_LINK = re.compile(r"`[^`\n]+`|\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")
_LIST_AFTER_TEXT = re.compile(r"^(?![ *|>#-]|\d+\. )([^\n]+)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)
# A comment in whose place the site has the reference of each public name of a module.
_NAMES_OF = re.compile(r"^<!-- names of ([\w.]+) -->$", re.MULTILINE)
# A comment in whose place the site has the list of decisions.
_DECISIONS = "<!-- decisions -->"
# A comment in whose place the site has a table of what a deployment costs.
_SCALE = re.compile(r"^<!-- scale: (\w+) -->$", re.MULTILINE)
_INDEX_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")

Nav = list[dict[str, "str | Nav"]]


class SiteError(Exception):
    """A page that cannot be put on the site, with what to do about it."""


def stage(folder: Path, *, ref: str = "main") -> None:
    """Write the sources of the site and its configuration into a folder, which is emptied first.

    Args:
        folder: gets ``zensical.toml`` and ``pages/``.
        ref: the branch or tag of the repository that links to files outside ``docs/`` lead to.

    Raises:
        SiteError: a link leads nowhere, or the index names no page of a section.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages = folder / "pages"
    for source in sorted(each for each in DOCS.rglob("*") if each.is_file()):
        target = pages / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            target.write_text(prepared(source.read_text("utf-8"), source, source, ref), "utf-8")
        else:
            shutil.copyfile(source, target)
    (pages / "index.md").write_text(front(ref), "utf-8")
    shutil.copytree(Path(__file__).parent / "assets", pages / "assets")
    config = (Path(__file__).parent / "zensical.toml").read_text("utf-8")
    (folder / "zensical.toml").write_text(config.replace("nav = []", f"nav = {as_toml(navigation())}"), "utf-8")


def place(source: Path) -> str:
    """Return the path of a page within the site's sources: an index of a folder is called ``index.md`` there."""
    relative = source.relative_to(DOCS)
    return str(relative.with_name("index.md") if relative.name == "README.md" else relative)


def front(ref: str = "main") -> str:
    """Return the front page: the beginning of the repository's README, then the index of the documentation."""
    readme, index = ROOT / "README.md", DOCS / "README.md"
    beginning = readme.read_text("utf-8").partition("\n## ")[0]
    _, _, rest = index.read_text("utf-8").partition("\n")
    return f"{prepared(beginning, readme, index, ref)}\n\n{prepared(rest, index, index, ref)}"


def prepared(text: str, source: Path, page: Path, ref: str) -> str:
    """Return the text of a page as the site needs it.

    Args:
        text: Markdown as it stands in the repository.
        source: the file that it comes from, which its links start from.
        page: the file of ``docs/`` in whose place it is shown.
        ref: see ``stage``.
    """
    for mark, (head, rows) in _TABLES.items():
        if mark in text:
            table = [head, ("---",) * len(head), *rows()]
            text = text.replace(mark, "\n".join(f"| {' | '.join(row)} |" for row in table))
    text = _SCALE.sub(_scale, _NAMES_OF.sub(_directives, text)).replace(_DECISIONS, _decisions())
    parts = []
    end = 0
    for match in _FENCE.finditer(text):
        parts += [_prose(text[end : match.start()], source, page, ref), _block(match)]
        end = match.end()
    return "".join([*parts, _prose(text[end:], source, page, ref)])


def _directives(match: re.Match[str]) -> str:
    """Return an entry of the reference for each public name of the module that a comment names."""
    return "\n\n".join(f"::: {match[1]}.{name}" for name in importlib.import_module(match[1]).__all__)


def _decisions() -> str:
    """Return links to the decisions by their headings, which begin with their numbers."""
    pages = sorted((DOCS / "adr").glob("[0-9]*.md"))
    headings = [page.read_text("utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    return "\n".join(f"- [{heading}]({page.name})" for heading, page in zip(headings, pages, strict=True))


def _scale(match: re.Match[str]) -> str:
    """Return the table of the scale on paper that a comment names."""
    costs, demand, server = load(), Demand(), Server()
    tables = {
        "calls": lambda: report.calls(costs),
        "single": lambda: report.singles(costs, demand, server),
        "limits": lambda: report.ends(limits(costs, demand, server)),
    }
    return tables[match[1]]()


def _commands(group: click.Group, above: click.Context, path: str) -> Iterator[tuple[str, str]]:
    """Yield each command below a group, and the first sentence of its help."""
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, parent=above), f"{path} {name}")
        elif command is not None:
            yield f"`{path} {name}`", command.get_short_help_str(limit=500)


def _names() -> Iterator[tuple[str, str]]:
    """Yield each module that programs import from, and its public names: first those that the package's docstring lists."""
    yield "`toolbus`", ", ".join(f"`{name}`" for name in toolbus.__all__)
    for module, names in re.findall(r"^- (``[\w.]+``): (.+)\.$", str(toolbus.__doc__), re.MULTILINE):
        yield module.replace("``", "`"), names.replace("``", "`")
    for name in ("events", "middleware", "sync", "testing", "agent", "toolkit", "toolkit.learning"):
        module = importlib.import_module(f"toolbus.{name}")
        yield f"`toolbus.{name}`", ", ".join(f"`{each}`" for each in module.__all__)


def _settings() -> Iterator[tuple[str, str, str]]:
    """Yield the variable of each setting, its default, and what it means."""
    for name, about in Settings.meanings().items():
        default = getattr(Settings(), name)
        yield f"`{PREFIX}{name.upper()}`", f"`{default if default != '' else ' '}`", about.removesuffix(".")


def _requirements(table: Table[Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the number of each requirement, its level, what it asks for, and the check, or why there is none."""
    for each in sorted(table.requirements, key=lambda each: int(each.id[1:])):
        yield each.id, str(each.level), each.meaning, f"`{each.name}`" if each.run else f"not checked: {each.unchecked}"


_OF_REQUIREMENTS = ("Number", "Level", "Requirement", "Check")
# Tables that the code declares, by the comment in whose place the site shows them: their heads, and what makes their rows.
_TABLES: dict[str, tuple[tuple[str, ...], Callable[[], Iterable[tuple[str, ...]]]]] = {
    "<!-- log events -->": (("Event", "Meaning"), lambda: ((f"`{name}`", about) for name, about in sorted(EVENTS.items()))),
    "<!-- metrics -->": (("Metric", "Kind", "Unit", "Meaning"), lambda: ((f"`{name}`", *about) for name, about in METRICS.items())),
    "<!-- metrics of processes -->": (
        ("Metric", "Kind", "Meaning"),
        lambda: ((f"`{name}`", *about) for name, about in EXPOSED.items()),
    ),
    "<!-- settings -->": (("Variable", "Default", "Meaning"), _settings),
    "<!-- names -->": (("Import from", "Names"), _names),
    "<!-- requirements of workers -->": (_OF_REQUIREMENTS, lambda: _requirements(WORKER)),
    "<!-- requirements of agents -->": (_OF_REQUIREMENTS, lambda: _requirements(AGENT)),
    "<!-- commands -->": (("Command", "What it does"), lambda: _commands(main, click.Context(main), "toolbus")),
}


def _block(match: re.Match[str]) -> str:
    """Return a block of code, or the table that says what a diagram of states draws."""
    table = as_table(match[4]) if match[3] == "mermaid" else None
    return match[0] if table is None else table


def _prose(text: str, source: Path, page: Path, ref: str) -> str:
    """Return text between blocks of code with links that work on the site, and lists apart from the paragraph before them."""

    def relinked(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        target = (source.parent / match[1]).resolve()
        if not target.exists():
            raise SiteError(f"{source.relative_to(ROOT)} links to {match[1]}, which is not there. Correct the link.")
        if target.is_relative_to(DOCS) and target.is_file():
            there = os.path.relpath(DOCS / place(target), page.parent)
        else:
            there = f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/{ref}/{target.relative_to(ROOT)}"
        return f"]({there}{match[2] or ''})"

    return _LIST_AFTER_TEXT.sub(r"\1\n\n", _LINK.sub(relinked, text))


def navigation() -> Nav:
    """Return the navigation: the sections of the index with the pages that it links to, in its order."""
    nav: Nav = [{"toolbus": "index.md"}]
    for heading, text in _sections(DOCS / "README.md"):
        pages: Nav = []
        for title, page in _linked(DOCS / "README.md", text):
            if page.name == "README.md":
                within: Nav = [{name: place(each)} for name, each in _linked(page)]
                pages.append({title: [{title: place(page)}, *within]})
            else:
                pages.append({title: place(page)})
        if not pages:
            raise SiteError(f"docs/README.md has a section {heading!r} without a link to a page. Add one, or remove the section.")
        nav.append({heading: pages})
    return nav


def _sections(index: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each section of an index; what follows a colon in its heading is no name."""
    for section in index.read_text("utf-8").split("\n## ")[1:]:
        heading, _, text = section.partition("\n")
        yield heading.partition(":")[0], text


def _linked(index: Path, text: str | None = None) -> list[tuple[str, Path]]:
    """Return title and file of each page that an index links to, once each."""
    found: dict[Path, str] = {}
    text = index.read_text("utf-8") if text is None else text
    for title, target in _INDEX_LINK.findall(text.replace(_DECISIONS, _decisions())):
        page = (index.parent / target).resolve()
        if page.is_relative_to(DOCS):
            found.setdefault(page, title.replace("`", ""))
    return [(title, page) for page, title in found.items()]


def pages_of(nav: Nav) -> list[str]:
    """Return the pages of a navigation, in its order."""
    return [page for entry in nav for each in entry.values() for page in ([each] if isinstance(each, str) else pages_of(each))]


def as_toml(nav: Nav) -> str:
    """Return a navigation as a value of TOML, on one line."""
    entries = (
        f"{{ {json.dumps(title, ensure_ascii=False)} = {json.dumps(each) if isinstance(each, str) else as_toml(each)} }}"
        for entry in nav
        for title, each in entry.items()
    )
    return f"[{', '.join(entries)}]"
