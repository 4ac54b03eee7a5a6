"""The fields of other projects' kinds that our manifests use, as their documentation names them.

No package has their schemas. These are strict, so that a field with a wrong name is found; whoever has the projects' own
definitions gives their folder in TOOLBUS_TEST_CRDS, and the manifests are checked against those as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from tests.deploy.chart import Manifest

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
# What a formula can name.
NAME: Schema = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
COUNT: Schema = {"type": "integer", "minimum": 0}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def _fields(needed: dict[str, Schema], more: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields, those of ``more`` being optional."""
    return {"type": "object", "properties": needed | (more or {}), "required": list(needed), "additionalProperties": False}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _trigger(kind: str, needed: dict[str, Schema]) -> Schema:
    # KEDA takes texts only, also where they are numbers.
    number, flag = {"type": "string", "pattern": "^[0-9]+$"}, {"enum": ["true", "false"]}
    more = {"databaseIndex": number, "username": TEXT, "enableTLS": flag}
    about = _fields({**needed, "stream": TEXT, "streamLength": number}, more)
    return _fields({"type": {"const": kind}, "metadata": about}, {"name": NAME, "authenticationRef": _fields({"name": TEXT})})


_TRIGGERS = [
    _trigger("redis-streams", {"address": TEXT}),
    _trigger("redis-sentinel-streams", {"addresses": TEXT, "sentinelMaster": TEXT}),
    _trigger("redis-cluster-streams", {"addresses": TEXT}),
]
_POLICY = _fields(
    {"type": {"enum": ["Percent", "Pods"]}, "value": COUNT | {"minimum": 1}, "periodSeconds": COUNT | {"minimum": 1, "maximum": 1800}}
)
_RULES = _fields(
    {},
    {
        "stabilizationWindowSeconds": COUNT | {"maximum": 3600},
        "policies": _list(_POLICY),
        "selectPolicy": {"enum": ["Max", "Min", "Disabled"]},
    },
)
_MODIFIERS = _fields({"formula": TEXT, "target": {"type": "string", "pattern": "^[0-9]+$"}})
_HPA = _fields({}, {"behavior": _fields({}, {"scaleUp": _RULES, "scaleDown": _RULES}), "name": TEXT})
_SCALED = _fields(
    {"scaleTargetRef": _fields({"name": TEXT}, {"kind": TEXT, "apiVersion": TEXT}), "triggers": _list({"oneOf": _TRIGGERS})},
    {
        "pollingInterval": COUNT,
        "cooldownPeriod": COUNT,
        "initialCooldownPeriod": COUNT,
        "minReplicaCount": COUNT,
        "maxReplicaCount": COUNT,
        "idleReplicaCount": COUNT,
        "fallback": _fields({"failureThreshold": COUNT, "replicas": COUNT}, {"behavior": TEXT}),
        "advanced": _fields({}, {"scalingModifiers": _MODIFIERS, "horizontalPodAutoscalerConfig": _HPA}),
    },
)
_RULE = _fields(
    {"alert": TEXT, "expr": TEXT}, {"for": {"type": "string", "pattern": "^[0-9]+[smh]$"}, "labels": LABELS, "annotations": LABELS}
)

SPECS: dict[tuple[str, str], Schema] = {
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): _fields(
        {
            "secretTargetRef": _list(
                _fields({"parameter": {"enum": ["password", "username", "ca", "cert", "key"]}, "name": TEXT, "key": TEXT})
            )
        }
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _fields(
        {"selector": _fields({"matchLabels": LABELS}), "endpoints": _list(_fields({"port": TEXT}, {"path": TEXT, "interval": TEXT}))},
        {"targetLabels": _list(TEXT)},
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _fields(
        {"groups": _list(_fields({"name": TEXT, "rules": _list(_RULE)}, {"interval": TEXT}))}
    ),
}


def mistakes(manifest: Manifest) -> list[str]:
    """Return what is wrong with a manifest of such a kind, each with its place.

    Raises:
        KeyError: the kind is none of them.
    """
    schema = SPECS[manifest["apiVersion"], manifest["kind"]]
    found = jsonschema_rs.validator_for(schema).iter_errors(manifest.get("spec"))
    return [f"spec{''.join(f'.{each}' for each in error.instance_path)}: {error.message}" for error in found]


def definitions(folder: Path) -> Iterator[tuple[str, Schema]]:
    """Return each kind that the definitions in a folder are of, and its newest schema, made strict as the API server is."""
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document and document.get("kind") == "CustomResourceDefinition":
                schema = document["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
                _make_strict(schema)
                schema["properties"]["metadata"] = {"type": "object"}
                yield document["spec"]["names"]["kind"], schema


def _make_strict(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _make_strict(each)
    if not isinstance(schema, dict):
        return
    closed = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and not closed:
        schema["additionalProperties"] = False
    for each in schema.values():
        _make_strict(each)
