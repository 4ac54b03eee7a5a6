"""Find the presets that come with toolbus, which are stored beside the tools that they use."""

from __future__ import annotations

from pathlib import Path

from toolbus.results import ToolkitError
from toolbus.worker.loading.installed import find_installed


def shipped_presets() -> dict[str, Path]:
    """Return the files of the shipped presets by name."""
    package = find_installed("toolbus_workers")
    places = package.submodule_search_locations if package is not None else None
    return {path.stem: path for place in places or () for path in sorted(Path(place, "presets").glob("*.yaml"))}


def find_preset(place: str | Path) -> Path:
    """Return the file at a path, or the shipped preset of that name.

    Raises:
        ToolkitError: a name without a suffix is neither.
    """
    path = Path(place)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    shipped = shipped_presets()
    if path.name not in shipped:
        raise ToolkitError(f"there is no file {path.name!r} here, and no preset of that name (there are: {', '.join(shipped)})")
    return shipped[path.name]
