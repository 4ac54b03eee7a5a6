"""Keep what Python and uv make of approved code in folders of the host's own, so that nothing beside the approved files is run."""

from __future__ import annotations

import os
from pathlib import Path

from toolbus.backends.runner import CannotStart


def made_elsewhere(folder: Path, digest: str) -> dict[str, str]:
    """Return the variables that lead environment and byte code of a folder's code to folders that only this user may enter.

    A digest leaves ``.venv``, ``__pycache__`` and ``*.pyc`` out, so they may hold what nobody approved.

    Raises:
        CannotStart: the host can't write its cache, or the folder has byte code that Python would read as a module.
    """
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in {".venv", "__pycache__"}]
        for name in files:
            if name.endswith(".pyc"):
                raise CannotStart(f"{Path(path, name)} is byte code that no approval covers, and Python could run it; remove it")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolbus" / "programs"
    own = cache / digest
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for each in (cache, own):
            each.mkdir(exist_ok=True)
            each.chmod(0o700)
    except OSError as error:
        raise CannotStart(
            f"the host can't write its cache {str(own)!r} ({error.strerror}); set XDG_CACHE_HOME to a folder of its own"
        ) from None
    return {"UV_PROJECT_ENVIRONMENT": str(own / "venv"), "PYTHONPYCACHEPREFIX": str(own / "pycache")}
