"""Renders the Helm chart with Helm's own engine, and checks manifests against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from benchmarks.autoscaling.hpa import desired

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "toolbus"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
NEWEST, OLDEST = "1.37", "1.27"

Manifest = dict[str, Any]
Values = dict[str, Any]

# Everything on, with a Valkey of the release.
INTERNAL: Values = {
    "valkey": {"aclSecret": "acl", "storageClass": "disks"},
    "redis": {"auth": {"worker": {"username": "worker", "secret": "worker"}, "scaler": {"secret": "scaler"}}},
    "workerDefaults": {"targets": ["calculator"], "services": ["calculator"], "autoscaling": {"enabled": True}},
    "workers": {"tools": None, "only": {}},
    "monitoring": {name: {"enabled": True} for name in ("exporter", "history", "serviceMonitor", "rules", "dashboards")},
}
# An external server with TLS, a mounted server, and JSON Web Tokens.
EXTERNAL: Values = {
    "valkey": {"enabled": False},
    "redis": {
        "url": "rediss://redis.example.org:6380",
        "auth": {name: {"username": name, "secret": name} for name in ("worker", "gateway", "scaler", "monitor")},
        "tls": {"enabled": True, "caSecret": "ca", "clientSecret": "client"},
    },
    "monitoring": {"exporter": {"enabled": True}, "history": {"enabled": True, "place": "otlp"}},
    "gateway": {"jwt": {"keys": "https://id.example.org/keys", "issuer": "https://id.example.org", "audience": "tools"}},
    "workers": {
        "tools": {"autoscaling": {"enabled": True, "minReplicas": 0}},
        "mounted": {"mount": {"name": "time", "options": ["--prefix=t_"], "target": ["https://time.example.org/mcp"]}},
    },
}


@functools.cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(str(CHART))


def render(values: Mapping[str, Any], name: str = "demo", namespace: str = "prod") -> dict[str, str]:
    """Return the texts that the chart makes, by file."""
    return _chart().render(dict(values), name=name, namespace=namespace)


def manifests(values: Mapping[str, Any], name: str = "demo") -> list[Manifest]:
    """Return the manifests that the chart makes."""
    texts = [text for path, text in render(values, name).items() if path.endswith(".yaml")]
    return [each for text in texts for each in loaded(text) if each]


@functools.lru_cache(maxsize=256)
def loaded(text: str) -> tuple[Any, ...]:
    """Return the documents of a YAML text, which must not be changed: most values leave most texts as they are."""
    # PyYAML's own parser takes ten times as long.
    return tuple(yaml.load_all(text, yaml.CSafeLoader))


def found(made: list[Manifest], kind: str, name: str) -> Manifest:
    """Return the manifest of a kind whose name ends so."""
    [only] = [each for each in made if each["kind"] == kind and each["metadata"]["name"].endswith(name)]
    return only


def replicas(scaled: Manifest, lengths: Mapping[str, int], current: int) -> int:
    """Return how many replicas KEDA and the autoscaler want, where streams have these lengths.

    As the documentation of KEDA says: a formula makes one metric of the triggers that it names; without one, the trigger that asks
    for most decides.
    """
    triggers = scaled["spec"]["triggers"]
    if modifiers := scaled["spec"].get("advanced", {}).get("scalingModifiers"):
        named = {each["name"]: lengths[each["metadata"]["stream"]] for each in triggers}
        return desired(current, sum(named[name] for name in modifiers["formula"].split(" + ")), int(modifiers["target"]))
    asked = ((lengths[each["metadata"]["stream"]], int(each["metadata"]["streamLength"])) for each in triggers)
    return max(desired(current, length, target) for length, target in asked)


def validate(manifest: Manifest, version: str = NEWEST) -> bool:
    """Check a manifest strictly; return false for kinds that are no part of Kubernetes."""
    if "." in manifest["apiVersion"].partition("/")[0] and not manifest["apiVersion"].partition("/")[0].endswith("k8s.io"):
        return False
    return _validated(json.dumps(manifest, sort_keys=True), version)


@functools.lru_cache(maxsize=4096)
def _validated(text: str, version: str) -> bool:
    # jsonschema would build its grammar for two seconds, and no schema of Kubernetes asks for addresses of that form.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # None keeps it from being imported
    import kubernetes_validate

    kubernetes_validate.validate(json.loads(text), version, strict=True)
    return True


def changed(values: Mapping[str, Any], path: str, value: object) -> Values:
    """Return a copy of values with another one at a path."""
    made: Values = copy.deepcopy(dict(values))
    *parents, last = path.split(".")
    place = made
    for each in parents:
        place = place.setdefault(each, {})
    place[last] = value
    return made


def value_at(values: Any, path: str) -> Any:
    """Return what stands at a path, or None."""
    for each in path.split("."):
        values = values.get(each) if isinstance(values, dict) else None
    return values


def leaves(schema: Mapping[str, Any] = SCHEMA, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the path and the schema of each value that can be set."""
    for name, each in schema["properties"].items():
        below = f"{path}.{name}".removeprefix(".")
        if "properties" in each and "examples" not in each:
            yield from leaves(each, below)
        else:
            yield below, each
