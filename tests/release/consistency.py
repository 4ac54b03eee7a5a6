"""The things that agree before a release: the version in each place, and pinned packages with what pyproject.toml asks for."""

from __future__ import annotations

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.project import PINNED, ROOT, Mistake, pins, project, variable, version

VERSIONS = {
    "deploy/helm/toolbus/Chart.yaml": r'^appVersion: "?([^"\n]+)"?$',
    "deploy/kustomize/base/kustomization.yaml": r"newTag: ([^}\s]+)",
}
"""Files that name the version, and where."""


def requirements(*extras: str) -> list[Requirement]:
    """Return what the core and some extras need, extras of extras included."""
    table = project()
    optional = table["optional-dependencies"]
    needed = table["dependencies"]
    assert isinstance(optional, dict)
    assert isinstance(needed, list)
    found = [Requirement(each) for each in needed]
    waiting, seen = list(extras), set[str]()
    while waiting:
        if (extra := waiting.pop()) in seen:
            continue
        seen.add(extra)
        for each in map(Requirement, optional[extra]):
            if each.name == "toolbus":
                waiting += each.extras
            else:
                found.append(each)
    return found


def extras_of(kind: str) -> list[str]:
    """Return the extras of a set of pinned packages."""
    return {"": "", "image": variable("IMAGE_EXTRAS"), "all": variable("ALL_EXTRAS")}[kind].split()


def check() -> None:
    """Check that everything agrees.

    Raises:
        Mistake: it does not.
    """
    for name, pattern in VERSIONS.items():
        found = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        if found is None or found[1] != version():
            raise Mistake(f"{name} says {found and found[1]}, and pyproject.toml {version()}")
    for kind, file in PINNED.items():
        pinned = {canonicalize_name(name): versions for name, versions in pins(file).items()}
        for needed in requirements(*extras_of(kind)):
            versions = pinned.get(canonicalize_name(needed.name), ["0"])
            if not all(needed.specifier.contains(each, prereleases=True) for each in versions):
                raise Mistake(f"{file} does not have {needed}: make constraints")
    if f"SOURCE_DATE_EPOCH={variable('EPOCH')}\n" not in (ROOT / "deploy" / "Dockerfile").read_text("utf-8"):
        raise Mistake("the image and the wheel have different dates: EPOCH of the Makefile, SOURCE_DATE_EPOCH of the Dockerfile")
