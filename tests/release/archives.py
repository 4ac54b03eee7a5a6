"""The contents of the wheel and of the sdist, and those that they must have."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from tests.release.project import ROOT, Mistake, project, version

MOST = 3_000_000
"""Bytes that the wheel or the sdist may have."""

_PACKAGES = {"toolbus": "toolbus", "workers/toolbus_workers": "toolbus_workers"}
_PATHS = re.compile(rb"/(?:home|Users|root|work|tmp/[\w.-]+/(?:src|build))/[\w.-]+")
"""Folders of somebody's machine."""
_ABOUT = ("LICENSE", "README.md", "CHANGELOG.md", "THIRD_PARTY_LICENSES.md", "pyproject.toml", "PKG-INFO")


def sources() -> dict[str, Path]:
    """Return the file of each path that the wheel must have, from the project's own folders."""
    found: dict[str, Path] = {}
    for folder, name in _PACKAGES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                found[f"{name}/{path.relative_to(ROOT / folder).as_posix()}"] = path
    return found


def members(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel or an sdist; those of an sdist without the folder that holds them."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(archive) as sdist:
        return {each.name.partition("/")[2]: _read(sdist, each) for each in sdist.getmembers() if each.isfile()}


def _read(sdist: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = sdist.extractfile(member)
    return b"" if file is None else file.read()


def metadata(wheel: dict[str, bytes]) -> Message:
    """Return the metadata of a wheel."""
    return message_from_bytes(wheel[f"toolbus-{version()}.dist-info/METADATA"])


def faults(wheel: dict[str, bytes], sdist: dict[str, bytes]) -> Iterator[str]:
    """Return what is wrong with the files of a release, one line for each."""
    about = f"toolbus-{version()}.dist-info/"
    wanted = sources()
    for name, path in wanted.items():
        if wheel.get(name) != path.read_bytes():
            yield f"the wheel lacks {name}, or has another one"
        if sdist.get(path.relative_to(ROOT).as_posix()) != path.read_bytes():
            yield f"the sdist lacks {path.relative_to(ROOT)}, or has another one"
    for name in sorted(wheel.keys() - wanted.keys()):
        if not name.startswith(about):
            yield f"the wheel has {name}, which is not of the project"
    yield from _lacking("wheel", wheel, [about + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")])
    yield from _lacking("sdist", sdist, _ABOUT)
    for kind, files in (("wheel", wheel), ("sdist", sdist)):
        for name, content in files.items():
            if name.endswith(".pyc") or {"__pycache__", "tests", "benchmarks"} & set(name.split("/")[:-1]):
                yield f"the {kind} has {name}"
            if str(ROOT).encode() in content or (name.startswith(about) and _PATHS.search(content)):
                yield f"{name} of the {kind} names a folder of this machine"
    yield from _metadata_faults(metadata(wheel))


def _lacking(kind: str, files: dict[str, bytes], wanted: Iterable[str]) -> Iterator[str]:
    """Return a fault for each file that is not there."""
    return (f"the {kind} lacks {name}" for name in wanted if name not in files)


def _metadata_faults(about: Message) -> Iterator[str]:
    """Return what the metadata says otherwise than pyproject.toml."""
    table = project()
    extras = table["optional-dependencies"]
    urls = table["urls"]
    assert isinstance(extras, dict)
    assert isinstance(urls, dict)
    expected = {
        "Name": ["toolbus"],
        "Version": [version()],
        "Requires-Python": [table["requires-python"]],
        "License-Expression": [table["license"]],
        "License-File": ["LICENSE"],
        "Classifier": table["classifiers"],
        "Provides-Extra": sorted(extras),
        "Project-URL": [f"{name}, {url}" for name, url in urls.items()],
        "Description-Content-Type": ["text/markdown"],
    }
    for field, values in expected.items():
        if sorted(about.get_all(field, [])) != sorted(str(each) for each in values):  # type: ignore[attr-defined]
            yield f"the metadata says {field}: {about.get_all(field)}, and pyproject.toml {values}"


def check(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the sdist of a folder that has nothing else, after looking into them.

    Raises:
        Mistake: one is missing or too large, or something is wrong with its files.
    """
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [f"toolbus-{version()}-py3-none-any.whl", f"toolbus-{version()}.tar.gz"]
    if [each.name for each in files] != names:
        raise Mistake(f"{folder.name} has {', '.join(each.name for each in files) or 'nothing'}; `make dist` makes {' and '.join(names)}")
    for each in files:
        if each.stat().st_size > MOST:
            raise Mistake(f"{each.name} has {each.stat().st_size} bytes, of at most {MOST}")
    found = list(faults(members(files[0]), members(files[1])))
    if found:
        raise Mistake(found[0] if len(found) == 1 else f"{found[0]}; and {len(found) - 1} more of the kind")
    return files[0], files[1]
