"""The kustomize overlays: they build, fit the schemas of Kubernetes, and say what the chart says."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest

from tests.deploy.chart import DEPLOY, NEWEST, OLDEST, Manifest, found, loaded, manifests, validate
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.settings import PREFIX, Settings

FOLDER = DEPLOY / "kustomize"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
KUBECTL = shutil.which("kubectl")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@functools.cache
def build(overlay: str) -> tuple[Manifest, ...]:
    """Return the manifests of an overlay."""
    words = [str(KUBECTL), "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    return loaded(done.stdout)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_fits_the_schemas_of_kubernetes(overlay: str, version: str) -> None:
    """Only KEDA's kinds have no schema there."""
    assert {each["kind"] for each in build(overlay) if not validate(each, version)} <= {"ScaledObject", "TriggerAuthentication"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_name_that_is_referred_to_is_there(overlay: str) -> None:
    """Configuration, selectors and what is scaled; the settings are toolbus' own."""
    made = build(overlay)
    [config] = [each for each in made if each["kind"] == "ConfigMap"]
    Settings.load(config["data"])
    assert {name.removeprefix(PREFIX).lower() for name in config["data"]} <= set(Settings.__struct_fields__)
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in made if each["kind"] in {"Deployment", "StatefulSet"}]
    for each in made:
        if each["kind"] == "Deployment":
            [container] = each["spec"]["template"]["spec"]["containers"]
            assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
        selector = each.get("spec", {}).get("selector", each.get("spec", {}).get("podSelector"))
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert "app.kubernetes.io/name" in wanted
            assert sum(wanted.items() <= carried.items() for carried in labels) == 1, each["metadata"]["name"]


def test_pods_are_those_of_the_chart() -> None:
    """Probes, confinement, arguments and resources are the same, so that a change of one is made in both."""
    made, chart = build("development"), manifests({})
    for name, theirs in (("worker", "worker-tools"), ("gateway", "gateway")):
        ours = found(made, "Deployment", name)["spec"]["template"]["spec"]
        other = found(chart, "Deployment", theirs)["spec"]["template"]["spec"]
        assert ours["securityContext"] == other["securityContext"]
        assert ours["terminationGracePeriodSeconds"] == other["terminationGracePeriodSeconds"]
        same = {"args", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext", "ports", "volumeMounts"}
        for key in same:
            assert ours["containers"][0][key] == other["containers"][0][key], key


def test_production_scales_by_the_streams_of_its_services() -> None:
    """With the keys of the program, by KEDA alone, and without a server of its own."""
    made = build("production")
    triggers = found(made, "ScaledObject", "worker")["spec"]["triggers"]
    keys = Keys("default")
    assert [each["metadata"]["stream"] for each in triggers] == [keys.queue("calculator"), keys.queue("text")]
    deployment = found(made, "Deployment", "worker")
    assert "replicas" not in deployment["spec"]
    assert {"calculator", "text"} <= set(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    assert not [each for each in made if each["kind"] == "StatefulSet"]
