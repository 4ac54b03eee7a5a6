"""The things that agree before a release, and the licences of pinned packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.release import consistency, licences, project
from tests.release.consistency import VERSIONS
from tests.release.project import PINNED, ROOT, Mistake, pins


def test_everything_agrees() -> None:
    """The version is the same everywhere, and each pinned set has what its extras ask for."""
    consistency.check()


def test_another_version_somewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file and both versions."""
    for name in VERSIONS:
        (file := tmp_path / name).parent.mkdir(parents=True)
        file.write_text((ROOT / name).read_text("utf-8").replace(project.version(), "99.0.0"))
    monkeypatch.setattr(consistency, "ROOT", tmp_path)
    with pytest.raises(Mistake, match=rf"deploy/helm/toolbus/Chart\.yaml says 99\.0\.0, and pyproject\.toml {project.version()}"):
        consistency.check()


def test_a_package_that_is_not_pinned_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, the requirement, and what makes the file anew."""
    monkeypatch.setattr(consistency, "pins", lambda name: {key: each for key, each in pins(name).items() if key != "msgspec"})
    with pytest.raises(Mistake, match=r"constraints-core\.txt does not have msgspec>=0\.20: make constraints"):
        consistency.check()


@pytest.mark.parametrize("name", [*PINNED.values(), "build-constraints.txt", "release-constraints.txt"])
def test_every_pinned_package_has_hashes(name: str) -> None:
    """Neither a package without a hash, nor a path of a machine, nor a registry's address is in a file."""
    text = (ROOT / "deploy" / name).read_text("utf-8")
    entries = text.replace("\\\n", " ").splitlines()
    assert len(entries) == sum(map(len, pins(name).values())) > 0
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}", entry) for entry in entries)
    assert not re.search(r"://|--index|/home|/root|/work", text)


def test_the_sets_have_the_same_versions() -> None:
    """A package that is in several sets is pinned to one version."""
    every = pins(PINNED["all"])
    for name in PINNED.values():
        assert [package for package, versions in pins(name).items() if not set(versions) <= set(every[package])] == []


def test_every_pinned_package_has_an_allowed_licence() -> None:
    """The page lists each package that is pinned, and no other; each of its licences is on the list of allowed ones."""
    rows = re.findall(r"^\| (\S+) \| ([^|]+) \| [^|]+ \|$", licences.PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in rows if name != "Package") == sorted(canonicalize_name(each) for each in pins(PINNED["all"]))
    assert [(name, licence) for name, licence in rows if name != "Package" and not licences.is_allowed(licence)] == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("(AGPL-3.0-only OR SSPL-1.0)", False),
        ("__import__('os')", False),
        ("", False),
    ],
)
def test_licences_are_judged_by_their_expression(expression: str, allowed: bool) -> None:
    """One side of an OR has to be allowed, both of an AND; what is not understood is not allowed."""
    assert licences.is_allowed(expression) is allowed


def test_a_package_with_another_licence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package and its licence; one without a licence is refused, too."""
    strange = {"name": "strange", "licenses": [{"license": {"id": "AGPL-3.0-only"}}]}
    monkeypatch.setattr(licences, "pins", lambda _: {})
    monkeypatch.setattr(licences, "bill", lambda _: {"components": [strange]})
    with pytest.raises(Mistake, match=r"strange has the licence AGPL-3\.0-only, which is not allowed"):
        licences.page()
    monkeypatch.setattr(licences, "bill", lambda _: {"components": [{"name": "strange", "licenses": []}]})
    with pytest.raises(Mistake, match="strange names no licence"):
        licences.page()
