"""Change the Lua scripts in one place at a time and list the changes that no test on fakeredis notices.

``python -m tests.mutate_lua --step reap --step take`` names scripts by their files; without a name all are changed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from toolbus.bus.broker.server import scripts

_FOLDER = Path(scripts.__file__).parent / "lua"
_INCLUDE = re.compile(r"^-- include ([\w/]+)$", re.MULTILINE)
_TOKEN = re.compile(r"^#!.*|--.*|'(?:[^'\\]|\\.)*'|[A-Za-z_][\w.]*|\d+|[=~<>]=|\.{2,3}|\S", re.MULTILINE)
_SWAPS = {
    "==": ("~=",), "~=": ("==",), "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"),
    "and": ("or",), "or": ("and",), "not": ("",), "true": ("false",), "false": ("true",),
}  # fmt: skip
# A call after one of these is a part of an expression, or the head of a definition.
_EXPECTS_VALUE = {"=", "==", "~=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "..", "#", "(", ",", "{", "["} | {
    "and", "or", "not", "return", "if", "elseif", "while", "until", "in", "function",
}  # fmt: skip
_CPU_SECONDS = 20


class Change(NamedTuple):
    """A change of the text between two places of a script's file."""

    file: str
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        """Return the file's text with this change."""
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return its place, what it changes, and the line as it was."""
        line, column = source.count("\n", 0, self.start) + 1, self.start - source.rfind("\n", 0, self.start)
        before = " ".join(source[self.start : self.end].split())
        return f"{self.file}.lua:{line}:{column}: {before} -> {self.text or 'nothing'}    in: {source.splitlines()[line - 1].strip()}"


def changes_of(file: str, source: str) -> Iterator[Change]:
    """Yield every change of a file: comparisons, ``and`` and ``or``, ``not``, numbers, ``true`` and ``false``, calls left out."""
    before = ""
    tokens = [found for found in _TOKEN.finditer(source) if not found[0].startswith(("--", "#!"))]
    for at, found in enumerate(tokens):
        word = found[0]
        for text in _SWAPS.get(word, ()):
            yield Change(file, *found.span(), text)
        if word.isdigit():
            for number in (int(word) + 1, int(word) - 1):
                yield Change(file, *found.span(), str(number) if number >= 0 else f"({number})")
        after = tokens[at + 1][0] if at + 1 < len(tokens) else ""
        if after == "(" and word[0].isalpha() and not {before, word} & _EXPECTS_VALUE:
            depth = 0
            for last in tokens[at + 1 :]:
                depth += (last[0] == "(") - (last[0] == ")")
                if depth == 0:
                    yield Change(file, found.start(), last.end(), "")
                    break
        before = word


class Mutation:
    """A plugin of pytest that runs, instead of all tests, those that reach a changed script, in a child process for each change."""

    def __init__(self, steps: list[str], seed: int, limit: int | None) -> None:
        self._sources = {path.relative_to(_FOLDER).with_suffix("").as_posix(): path.read_text("utf-8") for path in _FOLDER.rglob("*.lua")}
        unknown = set(steps) - {name.rpartition("/")[2] for name in self._sources}
        if unknown:
            raise SystemExit(f"there is no script {', '.join(sorted(unknown))}")
        wanted = {name: source for name, source in self._sources.items() if not steps or name.rpartition("/")[2] in steps}
        found = [change for name, source in sorted(wanted.items()) for change in changes_of(name, source)]
        self._changes = sorted(random.Random(seed).sample(found, min(len(found), limit or len(found))))
        self._reached: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        self._failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Learn which scripts each test runs, then try every change."""
        self._learn(session.items)
        if self._failed:
            raise pytest.UsageError("the tests fail without any change")
        killed, survivors, unreached = 0, 0, 0
        for change in self._changes:
            source, items = self._sources[change.file], self._reached[change.file]
            killed += (noticed := bool(items) and self._notices(change, items))
            survivors, unreached = survivors + (not noticed and bool(items)), unreached + (not items)
            if not noticed:
                print(f"{change.describe(source)}{'' if items else ' (reached by no test)'}", flush=True)  # noqa: T201
        total = f"{len(self._changes)} changes: {killed} killed, {survivors} survived, {unreached} reached by no test"
        print(total, flush=True)  # noqa: T201
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a test that fails."""
        self._failed = self._failed or report.failed

    def _files_of(self, script: scripts.Script) -> list[str]:
        return [script.name, *_INCLUDE.findall(self._sources[script.name])]

    def _learn(self, items: list[pytest.Item]) -> None:
        from tests.broker.conftest import FakeServer

        seen: set[str] = set()
        evaluate = FakeServer.eval

        def recording(server: FakeServer, script: str, *args: Any) -> Any:
            seen.add(script)
            return evaluate(server, script, *args)

        took: dict[pytest.Item, float] = {}
        with patch.object(FakeServer, "eval", recording):
            for item in items:
                seen.clear()
                began = time.perf_counter()
                item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
                took[item] = time.perf_counter() - began
                for file in {file for script in scripts.ALL if script.source in seen for file in self._files_of(script)}:
                    self._reached[file].append(item)
        for reaching in self._reached.values():
            reaching.sort(key=lambda item: took[item])

    def _notices(self, change: Change, items: list[pytest.Item]) -> bool:
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1] != 0
        # A changed loop may never end; the system ends it, also within Lua.
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        self._sources[change.file] = change.apply(self._sources[change.file])
        for script in scripts.ALL:
            script.source = _INCLUDE.sub(lambda found: self._sources[found[1]], self._sources[script.name])
        for item in items:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                break
        os._exit(self._failed)


def main() -> int:
    """Run the tool; return 0 when it has tried every change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", action="append", default=[], help="name of a script, like reap; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="which changes are tried when there is a limit")
    parser.add_argument("--limit", type=int, help="most changes to try")
    given = parser.parse_args()
    plugin = Mutation(given.step, given.seed, given.limit)
    quiet = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:terminal", "-s", "-o", "addopts=", "-o", "timeout=20"]
    return int(pytest.main([*quiet, "-k", "fakeredis", str(Path(__file__).parent / "broker")], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
