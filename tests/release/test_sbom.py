"""Bills of materials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.release import licences
from tests.release.conftest import Copy
from tests.release.project import PINNED, pins, version

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("release")]


def test_a_bill_lists_what_is_pinned(built: Copy) -> None:
    """``make sbom`` writes one for each set: packages with version, licence and address, no folder of the machine, the same each time."""
    first = _made(built)
    for kind, name in PINNED.items():
        text = first[f"toolbus-{version()}{kind and f'-{kind}'}.cdx.json"]
        bill = json.loads(text)
        assert bill["bomFormat"] == "CycloneDX"
        assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == ("toolbus", version())
        pinned = {str(canonicalize_name(each)): versions for each, versions in pins(name).items()}
        found = {str(canonicalize_name(each["name"])): each for each in bill["components"]}
        # Packages for other systems are pinned, and not installed here.
        assert found.keys() <= pinned.keys()
        assert pinned.keys() - found.keys() <= licences.SAID_ELSEWHERE.keys()
        for each, component in found.items():
            assert component["version"] in pinned[each]
            assert component["purl"] == f"pkg:pypi/{each}@{component['version']}"
        assert str(built.folder) not in text
        assert "/tmp/" not in text
    assert _made(built) == first


def _made(built: Copy) -> dict[str, str]:
    done = built.make("sbom")
    assert done.returncode == 0, done.stderr
    folder: Path = built.folder / "build" / "sbom"
    return {path.name: path.read_text("utf-8") for path in folder.iterdir()}
