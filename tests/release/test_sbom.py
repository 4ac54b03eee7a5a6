"""Bills of materials, and the page of licences that is made from one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from tests.release import licences, sbom
from tests.release.conftest import Copy
from tests.release.project import PINNED, pins, version

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("kind", PINNED)
def test_a_bill_lists_what_is_pinned(kind: str, bills: dict[str, str], built: Copy) -> None:
    """It has each package with version, licence and address, and no folder of the machine."""
    bill = json.loads(bills[kind])
    assert bill["bomFormat"] == "CycloneDX"
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == ("toolbus", version())
    pinned = {str(canonicalize_name(each)): versions for each, versions in pins(PINNED[kind]).items()}
    found: dict[str, Any] = {str(canonicalize_name(each["name"])): each for each in bill["components"]}
    assert found.keys() <= pinned.keys()
    # Packages for other systems are pinned, and not installed here.
    assert pinned.keys() - found.keys() <= licences.SAID_ELSEWHERE.keys()
    for name, component in found.items():
        assert component["version"] in pinned[name]
        assert component["purl"] == f"pkg:pypi/{name}@{component['version']}"
        assert licences.is_allowed(licences.declared(component))
    assert str(built.folder) not in bills[kind]
    assert "/tmp/" not in bills[kind]


def test_a_bill_follows_the_schema(bills: dict[str, str]) -> None:
    """The schema of CycloneDX's own version accepts it."""
    # Its validator builds grammars for seconds, which collecting the tests does not need.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bills[""]) is None


def test_a_bill_is_the_same_each_time(bills: dict[str, str]) -> None:
    """Neither the date nor the environment's folder changes it."""
    assert sbom.bill("") == json.loads(bills[""])


def test_the_page_of_licences_is_current(bills: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what ``make licences`` writes from the packages themselves."""
    monkeypatch.setattr(licences, "bill", lambda kind: json.loads(bills[kind]))
    assert licences.page() == licences.PAGE.read_text("utf-8")
