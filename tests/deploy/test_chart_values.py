"""Every value of the chart: described, used by a template, and refused by its name when it is wrong."""

from __future__ import annotations

from typing import Any

import helm_python
import pytest
import yaml

from tests.deploy.chart import EXTERNAL, INTERNAL, SCHEMA, VALUES, Manifest, changed, leaves, manifests, render, validate, value_at
from toolbus.bus.values.settings import Settings

LEAVES = {path: schema for path, schema in leaves() if path != "global"}
# Values that only go together.
COMPANIONS: dict[str, dict[str, Any]] = {
    "valkey.enabled": {"redis.url": "redis://other.example.org", "valkey.enabled": False},
    "gateway.open": {"gateway.sharedTokens": False},
    "workerDefaults.mount": {"workerDefaults.targets": []},
    "serviceAccount.create": {"serviceAccount.name": ""},
}
# Settings that the chart sets by other values.
SET_OTHERWISE = {"url", "namespace", "grace", "password_file", "tls_ca", "tls_cert", "tls_key", "log_format", "connect_timeout"}


def another(schema: dict[str, Any], now: Any) -> Any:
    """Return another value than the present one that a schema allows."""
    if "examples" in schema:
        return schema["examples"][0]
    if "enum" in schema:
        return next(each for each in schema["enum"] if each != now)
    match schema["type"]:
        case "boolean":
            return not now
        case "integer":
            return now + 1 if now + 1 <= schema.get("maximum", now + 1) else now - 1
    raise AssertionError(f"give it examples: {schema}")


def test_every_value_has_a_default_and_a_description() -> None:
    """The file of values and its schema know the same keys, and a group of workers takes what the defaults take."""
    for path, schema in LEAVES.items():
        assert schema["description"].endswith("."), path
        assert value_at(VALUES, path) is not None, path
    group = SCHEMA["properties"]["workers"]["additionalProperties"]
    assert group["properties"].keys() == SCHEMA["properties"]["workerDefaults"]["properties"].keys()
    render(VALUES)


def test_settings_are_those_of_toolbus() -> None:
    """A new setting can be set by the chart, and one that is gone can't."""
    names = set(Settings.__struct_fields__) - SET_OTHERWISE
    for part, known in {"gateway": names, "workerDefaults": names - {"concurrency", "lease"}}.items():
        named = set(SCHEMA["properties"][part]["properties"]["settings"]["properties"])
        assert named ^ known == set(), f"values.schema.json has these for {part}.settings, or Settings has them, and not both"


def test_defaults_are_those_of_toolbus() -> None:
    """A setting that the chart names has the same value there."""
    own = Settings()
    said = {name: value for name, value in VALUES["workerDefaults"].items() if name in Settings.__struct_fields__}
    assert said.keys() >= {"lease", "grace", "concurrency"}
    assert said == {name: getattr(own, name) for name in said}, "give the values of the chart the defaults of Settings"


def test_what_the_chart_makes_of_its_defaults_is_valid() -> None:
    """Without a value set, there are workers, a gateway and a Valkey."""
    made = manifests({})
    assert all(validate(each) for each in made)
    assert sorted(each["metadata"]["name"] for each in made if each["kind"] in {"Deployment", "StatefulSet"}) == [
        "demo-toolbus-gateway",
        "demo-toolbus-valkey",
        "demo-toolbus-worker-tools",
    ]


@pytest.fixture(scope="module")
def bases() -> list[tuple[dict[str, Any], list[Manifest]]]:
    """The values with everything on, and what is made of them."""
    return [(base, manifests(base)) for base in (INTERNAL, EXTERNAL)]


def changes(path: str, base: dict[str, Any], before: list[Manifest]) -> bool:
    """Return whether another value changes a manifest; what is made then must be valid."""
    now = value_at(base, path)
    values = changed(base, path, another(dict(LEAVES[path]), value_at(VALUES, path) if now is None else now))
    for other, companion in COMPANIONS.get(path, {}).items():
        values = changed(values, other, companion)
    try:
        made = manifests(values)
    except helm_python.HelmRenderError:
        # The two do not go together; with the other base they must.
        return False
    for each in made:
        validate(each)
    return made != before


@pytest.mark.parametrize("path", sorted(LEAVES))
def test_every_value_changes_what_is_made(path: str, bases: list[tuple[dict[str, Any], list[Manifest]]]) -> None:
    """With everything on, another value changes a manifest, and what is made stays valid."""
    assert any(changes(path, *each) for each in bases), "no template uses it"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("path", sorted(LEAVES))
def test_what_a_value_makes_is_valid_with_every_base(path: str, bases: list[tuple[dict[str, Any], list[Manifest]]]) -> None:
    """Also where another value than the one that shows its use is set beside it."""
    changed_with = [changes(path, *each) for each in bases]
    assert any(changed_with)


WRONG: dict[str, tuple[Any, str]] = {
    "redis.url": ("redis://user:secret@host:6379", "/redis/url"),
    "redis.URL": ("redis://host", "'URL'"),
    "replicas": (3, "'replicas'"),
    "monitoring.history.place": ("calls.db", "/monitoring/history/place"),
    "workers.tools.replica": (3, "'replica'"),
    "workers.tools.replicas": ("3", "/workers/tools/replicas"),
    "workers.Tools": ({"targets": ["joke"]}, "'Tools'"),
    "workers.tools.processes": (0, "/workers/tools/processes"),
    "workers.tools.settings": ({"timeoutt": 3}, "'timeoutt'"),
    "workers.tools.services": (["a b"], "/workers/tools/services/0"),
    "workers.tools.mount": ({"name": "a", "options": ["get"], "target": ["x"]}, "/workers/tools/mount/options/0"),
    "workers.tools.autoscaling.minReplicas": (-1, "/workers/tools/autoscaling/minReplicas"),
    "workers.tools.topologySpread.whenUnsatisfiable": ("Never", "/workers/tools/topologySpread/whenUnsatisfiable"),
    "namespace": ("a b", "/namespace"),
    "gateway.service.port": (70000, "/gateway/service/port"),
    "gateway.rate": ("lots", "/gateway/rate"),
    "valkey.maxmemory": ("much", "/valkey/maxmemory"),
    "image.pullPolicy": ("Sometimes", "/image/pullPolicy"),
    "monitoring.serviceMonitor.interval": ("often", "/monitoring/serviceMonitor/interval"),
}


@pytest.mark.parametrize("path", sorted(WRONG))
def test_a_wrong_value_is_refused_by_its_name(path: str) -> None:
    """The schema's error names the key."""
    value, named = WRONG[path]
    with pytest.raises(helm_python.HelmValuesError) as refused:
        render(changed({}, path, value))
    assert named in str(refused.value)


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"valkey.enabled": False}, "redis.url is missing"),
    ({"redis.url": "redis://host:6379"}, "give one of them"),
    ({"redis.tls.enabled": True}, "valkey of this chart has no TLS"),
    ({"valkey.enabled": False, "redis.url": "redis://host:6379", "redis.tls.enabled": True}, "begins with rediss"),
    ({"redis.auth.worker.username": "worker"}, "no secret with a password"),
    ({"redis.auth.worker.secret": "worker"}, "valkey.aclSecret is missing"),
    ({"workers.tools.targets": []}, "workers.tools: say what to serve"),
    ({"workers.tools.mount": {"name": "a", "target": ["x"]}}, "workers.tools: give targets or mount"),
    ({"workers.tools.services": [], "workers.tools.autoscaling.enabled": True}, "workers.tools.services is empty"),
    ({"workers.tools.autoscaling": {"enabled": True, "minReplicas": 11}}, "minReplicas is above maxReplicas"),
    ({"gateway.open": True}, "gateway.open"),
    ({"gateway.sharedTokens": False}, "say who may use it"),
    ({"gateway.jwt.keys": "https://id.example.org"}, "gateway.jwt.issuer"),
]


@pytest.mark.parametrize(("given", "told"), TOGETHER, ids=[told for _, told in TOGETHER])
def test_values_that_do_not_go_together_are_refused(given: dict[str, Any], told: str) -> None:
    """A missing secret, or one without its user: the error says which value to set."""
    values: Manifest = {}
    for path, value in given.items():
        values = changed(values, path, value)
    with pytest.raises(helm_python.HelmRenderError, match=told):
        render(values)


def test_the_values_file_is_plain() -> None:
    """Its defaults are used when no value is given."""
    assert yaml.safe_dump(manifests({})) == yaml.safe_dump(manifests(VALUES))
