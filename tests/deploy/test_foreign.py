"""Manifests of KEDA's and the Prometheus Operator's kinds: every field is one that these projects know."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from tests.deploy.chart import CHART, DEPLOY, EXTERNAL, INTERNAL, Manifest, changed, manifests
from tests.deploy.foreign import SPECS, definitions, mistakes

CRDS = os.environ.get("TOOLBUS_TEST_CRDS", "")
URLS = ("redis://host:6379", "rediss://host:6380/2", "redis+sentinel://a:1,b:2/main/0", "rediss+cluster://a:1,b:2")
OVERLAY = DEPLOY / "kustomize" / "overlays" / "production" / "scaling.yaml"
KINDS = {kind for _, kind in SPECS}


def foreign() -> list[Manifest]:
    """Return what the chart makes with everything on, at each kind of server, and what the overlay has."""
    servers = [changed(changed(EXTERNAL, "redis.url", url), "redis.tls.enabled", url.startswith("rediss")) for url in URLS]
    made = [each for values in (INTERNAL, EXTERNAL, *servers) for each in manifests(values)]
    return [each for each in [*made, *yaml.safe_load_all(OVERLAY.read_text())] if each["kind"] in KINDS]


def test_every_field_is_one_that_the_project_knows() -> None:
    """A field with a wrong name would be dropped by the API server without a word."""
    found = foreign()
    assert {(each["apiVersion"], each["kind"]) for each in found} == SPECS.keys()
    assert [(each["kind"], mistake) for each in found for mistake in mistakes(each)] == []


def _misname(spec: Manifest) -> None:
    spec["minReplicas"] = spec.pop("minReplicaCount")


def _number(spec: Manifest) -> None:
    spec["triggers"][0]["metadata"]["streamLength"] = 70


def _no_stream(spec: Manifest) -> None:
    del spec["triggers"][0]["metadata"]["stream"]


def _no_triggers(spec: Manifest) -> None:
    spec["triggers"] = []


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("change", [_misname, _number, _no_stream, _no_triggers])
def test_a_mistake_in_a_scaled_object_is_found(change: Callable[[Manifest], None]) -> None:
    """A field of another kind, a number where KEDA wants text, a trigger without its stream, and none at all."""
    one = copy.deepcopy(next(each for each in foreign() if each["kind"] == "ScaledObject"))
    change(one["spec"])
    assert mistakes(one)


def test_the_chart_carries_the_alerts_and_dashboards() -> None:
    """They are files of the chart, since neither a package of it nor every checkout has links."""
    monitoring, carried = DEPLOY / "monitoring", CHART / "files"
    names = {str(path.relative_to(monitoring)) for path in monitoring.rglob("*") if path.is_file()}
    assert {str(path.relative_to(carried)) for path in carried.rglob("*") if path.is_file()} == names
    for name in names:
        assert (carried / name).read_bytes() == (monitoring / name).read_bytes(), f"copy deploy/monitoring/{name} into the chart's files"


@pytest.mark.skipif(not CRDS, reason="TOOLBUS_TEST_CRDS names no folder with the projects' own definitions")
def test_the_projects_own_definitions_accept_them() -> None:
    """Each kind is defined there, and strictly has every field."""
    schemas = {kind: jsonschema_rs.validator_for(schema) for kind, schema in definitions(Path(CRDS))}
    assert schemas.keys() >= KINDS
    assert [(each["kind"], error.message) for each in foreign() for error in schemas[each["kind"]].iter_errors(each)] == []
