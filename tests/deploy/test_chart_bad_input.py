"""Bad input of the chart: each value of another kind, each unknown key, users without secrets, and releases that share a namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import helm_python
import pytest

from tests.deploy.chart import EXTERNAL, INTERNAL, SCHEMA, changed, leaves, manifests, render, validate

LEAVES = dict(leaves())
RELEASES = (
    "demo",
    "toolbus",
    "production-eu-central-1-team-a-tools-of-the-first-shop",
    "production-eu-central-1-team-a-tools-of-the-other-one",
)


def objects(schema: Mapping[str, Any] = SCHEMA, path: str = "") -> Iterator[str]:
    """Return the path of each object whose keys the schema lists."""
    if "properties" in schema:
        yield path
        for name, each in schema["properties"].items():
            yield from objects(each, f"{path}.{name}".removeprefix("."))


def wrong_for(schema: Mapping[str, Any]) -> Any:
    """Return a value of a type that a schema does not allow."""
    types = schema.get("type", [])
    allowed = {types} if isinstance(types, str) else set(types)
    if "enum" in schema:
        return [1]
    return next(value for kind, value in (("array", [1]), ("object", {"a": 1}), ("boolean", True)) if kind not in allowed)


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_a_value_of_another_kind_is_refused_by_its_name(path: str) -> None:
    """The schema's error names the key, whichever it is."""
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render(changed({}, path, wrong_for(LEAVES[path])))
    assert f"/{path.replace('.', '/')}'" in str(refused.value)


@pytest.mark.parametrize("path", [path for path in objects() if path != "global"])
def test_an_unknown_key_is_refused_by_its_name(path: str) -> None:
    """A key that is written wrongly is never dropped without a word."""
    with pytest.raises(helm_python.HelmValuesError, match="'mistake'"):
        render(changed({}, f"{path}.mistake".removeprefix("."), 1))


@pytest.mark.parametrize("role", ["worker", "gateway", "scaler", "monitor"])
@pytest.mark.parametrize("base", [INTERNAL, EXTERNAL], ids=["internal", "external"])
def test_a_user_without_a_secret_is_refused(base: dict[str, Any], role: str) -> None:
    """The server would refuse it, and only a pod's log would tell."""
    with pytest.raises(helm_python.HelmRenderError, match="has no secret with a password"):
        render(changed(base, f"redis.auth.{role}", {"username": "someone", "secret": ""}))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("base", [INTERNAL, EXTERNAL], ids=["internal", "external"])
def test_releases_in_one_namespace_share_no_name(base: dict[str, Any]) -> None:
    """Also those whose long names begin alike; every name is one that Kubernetes takes."""
    names: list[tuple[str, str]] = []
    for release in RELEASES:
        for each in manifests(base, release):
            validate(each)
            assert len(each["metadata"]["name"]) <= 63
            names.append((each["kind"], each["metadata"]["name"]))
    assert len(set(names)) == len(names)
