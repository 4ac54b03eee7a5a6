"""Check that a project's ``uv.lock`` fixes all code that the project runs, so that an approval of its folder is one of that code."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from toolbus.bus.values.results import ConfigurationError

MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of a lock file, or of a project file."""

_REMEDY = "let it depend on released packages of an index alone, and copy what it needs from elsewhere into its own folder"


def check_locked(path: str | os.PathLike[str]) -> None:
    """Refuse a project with code that can change although its folder does not; one without ``uv.lock`` has nothing to check.

    Each package must come from an index, with the hashes of its files, or be the project itself.

    Raises:
        ConfigurationError: it names the package and its source, or says why the file can't be read.
    """
    folder = Path(path).expanduser()
    lock = _read(folder / "uv.lock")
    if lock is None:
        return
    reason = next(chain(_of_lock(lock), _of_project(_read(folder / "pyproject.toml") or {})), "")
    if reason:
        raise ConfigurationError(f"code that is approved must not change afterwards, and {reason}; {_REMEDY}")


def _of_lock(lock: Mapping[str, Any]) -> Iterator[str]:
    """Yield why packages of a lock file are not fixed."""
    for package in _tables(lock.get("package")):
        name, source = package.get("name"), package.get("source")
        if source in ({"virtual": "."}, {"editable": "."}):
            continue
        index = source.get("registry") if isinstance(source, dict) and len(source) == 1 else None
        if not isinstance(index, str) or not index.startswith(("https://", "http://")):
            yield f"its package {name!r} comes from {_shown(source)}, not from an index"
        files = [*_tables(package.get("wheels")), *_tables([package.get("sdist")])]
        if not files or not all(each.get("hash") for each in files):
            yield f"its package {name!r} has files without a hash in uv.lock"


def _of_project(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield why what a project is built with, which no lock file has, is not from an index."""
    built = project.get("build-system")
    requires = built.get("requires") if isinstance(built, dict) else None
    for each in requires if isinstance(requires, list) else ():
        if "@" in str(each):
            yield f"it is built with {str(each)[:200]!r}, which is not from an index"
    tool = project.get("tool")
    uv = tool.get("uv") if isinstance(tool, dict) else None
    sources = uv.get("sources") if isinstance(uv, dict) else None
    for name, given in sources.items() if isinstance(sources, dict) else ():
        for source in _tables(given if isinstance(given, list) else [given]):
            if "index" not in source:
                yield f"tool.uv.sources takes {name!r} from {_shown(source)}, not from an index"


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _shown(source: object) -> str:
    if not isinstance(source, dict) or not source:
        return "nowhere"
    return ", ".join(f"{kind} {str(where)[:200]!r}" for kind, where in source.items())


def _read(path: Path) -> dict[str, Any] | None:
    """Return a file of TOML; None when there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ConfigurationError(f"{path} has more than {MOST_BYTES:,} bytes")
        return tomllib.loads(data.decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from None
