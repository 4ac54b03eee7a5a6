"""The guide to deployments: its values make a release, and it tells of every alert."""

from __future__ import annotations

import re

import yaml

from tests.deploy.chart import DEPLOY, found, leaves, manifests, validate
from tests.deploy.chart import VALUES as DEFAULTS
from tests.deploy.monitoring import ALERTS

GUIDE = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()
VALUES = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[0])
IMAGE_PROGRAMS = {"python", "toolbus"}


def test_its_values_make_a_release() -> None:
    """Three groups of workers, each as the guide says, and no other."""
    made = manifests(VALUES)
    for each in made:
        validate(each)
    groups = {each["metadata"]["name"] for each in made if each["kind"] == "Deployment"}
    assert groups == {f"demo-toolbus-{name}" for name in ("gateway", "worker-fast", "worker-reports", "worker-clock")}
    assert found(made, "ScaledObject", "worker-reports")["spec"]["minReplicaCount"] == 0
    assert found(made, "Deployment", "worker-reports")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 615
    assert found(made, "Deployment", "worker-clock")["spec"]["template"]["spec"]["containers"][0]["args"][0] == "mount"


def test_the_image_can_run_what_is_mounted() -> None:
    """The guide and the examples of the values mount a URL, or a program that the image has."""
    examples = [schema["examples"][0] for path, schema in leaves() if path == "workerDefaults.mount"]
    values = [group["mount"] for group in [*VALUES["workers"].values(), *DEFAULTS["workers"].values()] if group and "mount" in group]
    mounted = [each["target"][0] for each in (*examples, *values)]
    assert len(mounted) == 2
    assert [each for each in mounted if not each.startswith("https://") and each not in IMAGE_PROGRAMS] == []


def test_every_alert_is_explained() -> None:
    """The runbooks name each, and none that there is not."""
    runbooks = (DEPLOY.parent / "docs" / "how-to" / "runbooks.md").read_text()
    rules = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Toolbus\w+)(?::[\w ]+)?`", runbooks)) == rules


def test_every_path_in_it_is_there() -> None:
    """Files and folders of the project, as the guide names them."""
    paths = {path.rstrip("/.") for path in re.findall(r"deploy/[\w./-]+", GUIDE)}
    assert len(paths) > 7
    for path in paths:
        assert (DEPLOY.parent / path).exists(), path
