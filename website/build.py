"""Build the site strictly: a warning of any of its tools is a mistake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from website.links import faults
from website.stage import ROOT, SiteError, stage

_MOST_SECONDS = 600
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def build(site: Path, *, ref: str = "main") -> None:
    """Build the site into a folder, which it replaces.

    Args:
        site: the folder.
        ref: the branch or tag that links into the repository lead to.

    Raises:
        SiteError: the generator, the reader of docstrings, or the check of the result found something wrong.
    """
    work = ROOT / "build" / f"docs-{os.getpid()}"
    try:
        stage(work, ref=ref)
        _generate(work)
        wrong = faults(work / "site")
        if wrong:
            raise SiteError("\n".join(wrong))
        shutil.rmtree(site, ignore_errors=True)
        site.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(work / "site", site)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _generate(work: Path) -> None:
    """Run the generator over staged sources."""
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "zensical.toml"]
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if "No module named zensical" in done.stderr:
        raise SiteError("The site's tools are not installed. Run: pip install -e '.[docs]'")
    # The reader of docstrings warns on standard error, and the generator takes no notice.
    warned = [line.removeprefix("griffe: ") for line in done.stderr.splitlines() if line.startswith("griffe: ")]
    if done.returncode or warned:
        raise SiteError("\n".join(warned) or _said(f"{done.stdout}{done.stderr}"))


def _said(text: str) -> str:
    """Return what the generator said of the pages, without the traceback that it ends with."""
    return _COLOURS.sub("", text).partition("Traceback (most recent call last)")[0].strip()
