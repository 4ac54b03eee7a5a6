"""The presets that come with toolbus, beside the tools of the shelf that they use."""

from __future__ import annotations

from pathlib import Path

from toolbus.results import ToolkitError

# In the same distribution; a package of that name elsewhere on the path is somebody else's.
_FOLDER = Path(__file__).parents[2] / "workers" / "presets"


def shipped_presets() -> dict[str, Path]:
    """Their files by name."""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.yaml"))}


def find_preset(place: str | Path) -> Path:
    """The file that is meant: one of that path, or the shipped preset of that name.

    :raises ToolkitError: a name without a suffix is neither.
    """
    path = Path(place)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    shipped = shipped_presets()
    if path.name not in shipped:
        raise ToolkitError(f"there is no file {path.name!r} here, and no preset of that name (there are: {', '.join(shipped)})")
    return shipped[path.name]
