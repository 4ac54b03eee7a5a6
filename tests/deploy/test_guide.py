"""The guide to deployments: its values make a release, and it tells of every alert."""

from __future__ import annotations

import re

import yaml

from tests.deploy.chart import DEPLOY, found, manifests, validate
from tests.deploy.monitoring import ALERTS

GUIDE = (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text()


def test_its_values_make_a_release() -> None:
    """Three groups of workers, each as the guide says."""
    [text] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    made = manifests(yaml.safe_load(text))
    for each in made:
        validate(each)
    assert found(made, "ScaledObject", "worker-reports")["spec"]["minReplicaCount"] == 0
    assert found(made, "Deployment", "worker-reports")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 615
    assert found(made, "Deployment", "worker-clock")["spec"]["template"]["spec"]["containers"][0]["args"][0] == "mount"


def test_every_alert_is_explained() -> None:
    """And none that there is not."""
    rules = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Toolbus\w+)`", GUIDE)) == rules


def test_every_path_in_it_is_there() -> None:
    """Files and folders of the project, as the guide names them."""
    paths = {path.rstrip("/.") for path in re.findall(r"deploy/[\w./-]+", GUIDE)}
    assert len(paths) > 8
    for path in paths:
        assert (DEPLOY.parent / path).exists(), path
