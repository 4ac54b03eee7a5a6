"""Workers of one's own on Kubernetes: the manifests fit the schemas, the service, and each other."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.chart import NEWEST, OLDEST, Manifest, found, manifests, validate
from tests.examples_run.pages import EXAMPLES, ROOT, commands
from toolbus import ToolBus, Worker
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.operations.cli import main

FOLDER = EXAMPLES / "kubernetes"
PAGE = commands(FOLDER / "README.md")
KUBECTL = shutil.which("kubectl")
SERVICE: Any = runpy.run_path(str(FOLDER / "reports.py"))["Reports"]


@pytest.fixture(scope="module")
def made() -> list[Manifest]:
    """The manifests that `kubectl apply -k` applies."""
    if KUBECTL is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([KUBECTL, "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == ""
    return list(yaml.safe_load_all(done.stdout))


def options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a container's command, which must be one of toolbus."""
    command = main.get_command(main.make_context("toolbus", ["--help"], resilient_parsing=True), arguments[0])
    assert command is not None
    return command.make_context(arguments[0], arguments[1:]).params


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_fits_the_schemas_of_kubernetes(made: list[Manifest], version: str) -> None:
    """Only KEDA's kind has no schema there."""
    assert {each["kind"] for each in made if not validate(each, version)} == {"ScaledObject"}
    assert {each["metadata"]["namespace"] for each in made} == {"tools-dev"}


def test_the_workers_are_started_as_toolbus_takes_it(made: list[Manifest]) -> None:
    """The command, the settings, the probes' port and the grace fit each other, and the pod is confined like those of deploy/."""
    pod = found(made, "Deployment", "reports")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = options(container["args"])
    assert given["health_port"] == container["ports"][0]["containerPort"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    settings = Settings.load(variables)
    assert {name.removeprefix(PREFIX).lower() for name in variables} <= set(Settings.__struct_fields__)
    assert pod["terminationGracePeriodSeconds"] > settings.grace
    theirs = found(made, "Deployment", "worker")["spec"]["template"]["spec"]
    assert container["securityContext"] == theirs["containers"][0]["securityContext"]
    # The names of generated configuration have a hash, the same in both.
    assert container["envFrom"] == theirs["containers"][0]["envFrom"]


def test_each_selector_finds_one_workload(made: list[Manifest]) -> None:
    """Workers of our own and the built-in ones are told apart."""
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in made if each["kind"] in {"Deployment", "StatefulSet"}]
    for each in made:
        selector = each.get("spec", {}).get("selector", each.get("spec", {}).get("podSelector"))
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= carried.items() for carried in labels) == 1, each["metadata"]["name"]


def test_keda_scales_by_the_stream_of_the_service(made: list[Manifest]) -> None:
    """The key is the program's, the server is the one of the manifests, and only a service that says so is scaled to zero."""
    scaled = found(made, "ScaledObject", "reports")["spec"]
    [trigger] = scaled["triggers"]
    [config] = [each for each in made if each["kind"] == "ConfigMap"]
    assert trigger["metadata"]["stream"] == Keys(config["data"]["TOOLBUS_NAMESPACE"]).queue(SERVICE.id)
    host, _, port = trigger["metadata"]["address"].partition(":")
    name, namespace, _ = host.split(".")
    server = found(made, "Service", name)
    assert (server["metadata"]["namespace"], str(server["spec"]["ports"][0]["port"])) == (namespace, port)
    assert scaled["scaleTargetRef"]["name"] == found(made, "Deployment", "reports")["metadata"]["name"]
    assert (scaled["minReplicaCount"], SERVICE.scale_to_zero) == (0, True)
    assert "replicas" not in found(made, "Deployment", "reports")["spec"]


def test_the_image_has_the_service(made: list[Manifest]) -> None:
    """The Dockerfile copies the file to where the command and the manifests look for it, onto the image that the page builds."""
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    [(file, place)] = re.findall(r"^COPY --chown=0:0 (\S+) (\S+)$", text, re.MULTILINE)
    assert (FOLDER / file).is_file()
    [command] = re.findall(r"^CMD (.+)$", text, re.MULTILINE)
    target = f"{place}{file}"
    assert options(yaml.safe_load(command))
    [container] = found(made, "Deployment", "reports")["spec"]["template"]["spec"]["containers"]
    assert yaml.safe_load(command)[-1] == container["args"][-1] == target
    [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    for image in (base, container["image"]):
        assert any(each.startswith("docker build") and f"-t {image} " in each for each in PAGE), image
    [worker] = found(made, "Deployment", "worker")["spec"]["template"]["spec"]["containers"]
    assert worker["image"] == base


def test_the_values_make_the_same_workers_of_the_chart(made: list[Manifest]) -> None:
    """Helm's release has the target, the slots, the grace and the trigger of the manifests."""
    release = manifests(yaml.safe_load((FOLDER / "values.yaml").read_text("utf-8")))
    assert {each["kind"] for each in release if not validate(each)} == {"ScaledObject"}
    theirs = found(release, "Deployment", "worker-reports")["spec"]["template"]["spec"]
    ours = found(made, "Deployment", "reports")["spec"]["template"]["spec"]
    assert theirs["containers"][0]["args"][-1] == ours["containers"][0]["args"][-1]
    assert theirs["containers"][0]["image"] == ours["containers"][0]["image"]
    assert theirs["terminationGracePeriodSeconds"] == ours["terminationGracePeriodSeconds"]
    [theirs], [mine] = (found(each, "ScaledObject", "reports")["spec"]["triggers"] for each in (release, made))
    for key in ("stream", "streamLength"):
        assert theirs["metadata"][key] == mine["metadata"][key]


def names(text: str) -> Iterator[tuple[str, str]]:
    """Return each ``kind/name`` of a command of kubectl."""
    for kind, name in re.findall(r"\b(deployment|service)/(\S+)", text):
        yield kind.capitalize(), name


def test_the_page_names_what_is_there(made: list[Manifest]) -> None:
    """Objects, the namespace and folders of its commands exist."""
    for command in PAGE:
        for kind, name in names(command):
            assert found(made, kind, name)
        for namespace in re.findall(r"-n (\S+)|create namespace (\S+)", command):
            assert "tools-dev" in namespace
        for path in re.findall(r"(?:deploy|examples)/\S+", command):
            assert (ROOT / path).exists(), path


@pytest.mark.usefixtures("slow")
@pytest.mark.anyio
async def test_the_service_answers_the_call_of_the_page(namespace: str) -> None:
    """Its tool streams a chapter after the other."""
    async with Worker([SERVICE()], url="memory://", namespace=namespace), ToolBus("memory://", namespace=namespace) as bus:
        result = await bus.call("write_report", {"topic": "trains", "chapters": 1})
    assert result.output == "1. About trains\n"
