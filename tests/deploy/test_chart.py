"""Promises of the chart: what it makes fits together, and fits the program."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import helm_python
import pytest
import yaml

from tests.deploy.chart import (
    CHART,
    DEPLOY,
    EXTERNAL,
    INTERNAL,
    NEWEST,
    OLDEST,
    Manifest,
    Values,
    changed,
    found,
    manifests,
    render,
    replicas,
    validate,
)
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.bus.values.urls import check_url
from toolbus.operations.cli import main

BASES = {"internal": INTERNAL, "external": EXTERNAL}
FOREIGN = {"ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"}
LABEL = "app.kubernetes.io/"


def pods(made: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Return the name and the pod of each workload."""
    for each in made:
        if each["kind"] in {"Deployment", "StatefulSet"}:
            yield each["metadata"]["name"], each["spec"]["template"]


def ours(made: list[Manifest]) -> Iterator[Manifest]:
    """Return the pods that run toolbus."""
    return (pod["spec"] for name, pod in pods(made) if not name.endswith("valkey"))


def environment(pod: Manifest) -> dict[str, str]:
    """Return the variables of a pod's container."""
    return {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_fits_the_schemas_of_kubernetes(base: str, version: str) -> None:
    """From the oldest version that the chart allows to the newest; kinds of other projects have no schema there."""
    foreign = {each["kind"] for each in manifests(BASES[base]) if not validate(each, version)}
    assert foreign <= FOREIGN


def test_helm_finds_nothing_to_complain_about() -> None:
    """Helm's own checks find no error and no warning."""
    found_by_helm = helm_python.lint(str(CHART))
    assert found_by_helm["errors"] == []
    assert [each for each in found_by_helm["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("base", BASES)
def test_every_container_is_started_as_the_program_takes_it(base: str) -> None:
    """Its arguments are options that there are, its variables are settings, and its URL is one."""
    for pod in ours(manifests(BASES[base])):
        [container] = pod["containers"]
        words, name = container["args"], ""
        command: click.Command | None = main
        while isinstance(command, click.Group):
            name, *words = words
            command = command.get_command(click.Context(command), name)
        assert command is not None
        given = command.make_context(name, words).params
        if "ports" in container:
            address = (given["host"], given["port"]) if name == "exporter" else (given["health_host"], given["health_port"])
            assert address == ("0.0.0.0", 8080)
        variables = environment(pod)
        Settings.load({key: value for key, value in variables.items() if not value.startswith("/run/")})
        assert {key.removeprefix(PREFIX).lower() for key in variables} <= set(Settings.__struct_fields__)
        check_url(variables["TOOLBUS_URL"])


@pytest.mark.parametrize("base", BASES)
def test_pods_are_confined(base: str) -> None:
    """No pod runs as root, writes to its root or gains rights, and each path that is read from a secret is mounted."""
    for _, template in pods(manifests(BASES[base])):
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        volumes = {each["name"] for each in pod.get("volumes", [])} | {"data"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"].keys() == {"requests", "limits"}
            mounts = {each["mountPath"] for each in container["volumeMounts"]}
            assert {each["name"] for each in container["volumeMounts"]} <= volumes
            read = [each["value"] for each in container.get("env", []) if each.get("value", "").startswith("/run/")]
            assert all(path.rpartition("/")[0] in mounts for path in read), read


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("grace", [0, 30, 600])
def test_a_pod_has_the_grace_and_then_time_to_sign_off(base: str, grace: int) -> None:
    """Kubernetes kills it later than its supervisor would."""
    values = changed(changed(BASES[base], "workerDefaults.grace", grace), "gateway.grace", grace)
    for pod in ours(manifests(values)):
        watches = pod["containers"][0]["name"] in {"exporter", "history"}
        assert environment(pod)["TOOLBUS_GRACE"] == ("5" if watches else str(grace))
        if watches:
            continue
        assert pod["terminationGracePeriodSeconds"] >= grace + 10


@pytest.mark.parametrize("base", BASES)
def test_probes_ask_what_the_program_answers(base: str) -> None:
    """Only a dead event loop restarts a pod: a server that is away makes it not ready."""
    for pod in ours(manifests(BASES[base])):
        [container] = pod["containers"]
        paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/startup", "liveness": "/live", "readiness": "/ready"}
        assert {"name": "health", "containerPort": 8080} in container["ports"]


@pytest.mark.parametrize("base", BASES)
def test_every_selector_finds_pods_of_its_own_release_only(base: str) -> None:
    """Two releases in one namespace share no name, and no service, budget or policy of one reaches the other's pods."""
    releases = {name: manifests(BASES[base], name) for name in ("demo", "toolbus")}
    names = [{(each["kind"], each["metadata"]["name"]) for each in made} for made in releases.values()]
    assert names[0] & names[1] == set()
    every = [(release, pod["metadata"]["labels"]) for release, made in releases.items() for _, pod in pods(made)]
    for release, made in releases.items():
        for each in made:
            selector = each["spec"].get("selector", each["spec"].get("podSelector")) if "spec" in each else None
            if selector is None or each["kind"] == "ServiceMonitor":
                continue
            labels = selector.get("matchLabels", selector)
            reached = {owner for owner, carried in every if labels.items() <= carried.items()}
            assert reached == {release}, each["metadata"]["name"]


def test_a_group_is_scaled_by_the_streams_of_its_services() -> None:
    """The triggers ask for the very keys that the program uses, and no count of replicas fights with them."""
    made = manifests({"namespace": "shop", "workers": {"tools": {"autoscaling": {"enabled": True, "minReplicas": 0}}}})
    scaled = found(made, "ScaledObject", "worker-tools")["spec"]
    keys = Keys("shop")
    assert [each["metadata"]["stream"] for each in scaled["triggers"]] == [keys.queue("calculator"), keys.queue("text")]
    assert scaled["minReplicaCount"] == 0
    assert scaled["triggers"][0]["metadata"]["address"] == "demo-toolbus-valkey:6379"
    deployment = found(made, "Deployment", "worker-tools")
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]


def scaled_groups() -> Iterator[Manifest]:
    """Return what scales each group of workers of the chart with everything on, of its guide, and of the overlay."""
    overlay = DEPLOY / "kustomize" / "overlays" / "production" / "scaling.yaml"
    [guide] = re.findall(r"```yaml\n(.*?)```", (DEPLOY.parent / "docs" / "how-to" / "deploy.md").read_text(), re.DOTALL)
    many: Values = {"workers": {"many": {"targets": ["a"], "services": list("abcde"), "autoscaling": {"enabled": True}}}}
    texts = (manifests(values) for values in (INTERNAL, EXTERNAL, many, yaml.safe_load(guide)))
    return (each for made in (*texts, yaml.safe_load_all(overlay.read_text())) for each in made if each["kind"] == "ScaledObject")


def test_a_group_is_scaled_by_the_sum_of_its_services() -> None:
    """As many requests of each service as one pod is to have need a pod for each service, though none alone needs a second one."""
    sizes = set()
    for scaled in scaled_groups():
        triggers = scaled["spec"]["triggers"]
        lengths = {each["metadata"]["stream"]: int(each["metadata"]["streamLength"]) for each in triggers}
        assert replicas(scaled, lengths, current=1) == len(triggers), scaled["metadata"]["name"]
        sizes.add(len(triggers))
    assert sizes == {1, 2, 5}


@pytest.mark.parametrize(
    ("url", "kind", "about"),
    [
        ("redis://host:6379", "redis-streams", {"address": "host:6379", "enableTLS": "false"}),
        ("rediss://host:6380/2", "redis-streams", {"address": "host:6380", "enableTLS": "true", "databaseIndex": "2"}),
        (
            "redis+sentinel://a:1,b:2/main/0",
            "redis-sentinel-streams",
            {"addresses": "a:1,b:2", "sentinelMaster": "main", "databaseIndex": "0"},
        ),
        ("rediss+cluster://a:1,b:2", "redis-cluster-streams", {"addresses": "a:1,b:2", "enableTLS": "true"}),
    ],
)
def test_the_scaler_asks_the_same_server(url: str, kind: str, about: dict[str, str]) -> None:
    """A plain server, Sentinels and clusters each have a trigger of their own."""
    scaling: Values = {"valkey": {"enabled": False}, "redis": {"url": url}, "workers": {"tools": {"autoscaling": {"enabled": True}}}}
    trigger = found(manifests(scaling), "ScaledObject", "worker-tools")["spec"]["triggers"][0]
    assert trigger["type"] == kind
    assert about.items() <= trigger["metadata"].items()


def test_every_role_connects_as_its_own_user() -> None:
    """Each reads the password of its own secret from a file, and shows the client's certificate."""
    made = manifests(EXTERNAL)
    for role, name in (("worker", "worker-tools"), ("gateway", "gateway"), ("monitor", "exporter"), ("monitor", "history")):
        pod = found(made, "Deployment", name)["spec"]["template"]["spec"]
        variables = environment(pod)
        assert variables["TOOLBUS_URL"] == f"rediss://{role}@redis.example.org:6380"
        secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
        assert secrets == {"password": role, "ca": "ca", "client": "client"}
    scaler = found(made, "TriggerAuthentication", "scaler")["spec"]["secretTargetRef"]
    assert [(each["parameter"], each["name"], each["key"]) for each in scaler] == [
        ("password", "scaler", "password"),
        ("ca", "ca", "ca.crt"),
        ("cert", "client", "tls.crt"),
        ("key", "client", "tls.key"),
    ]


def test_the_scaler_shows_a_certificate_where_nothing_else_is_secret() -> None:
    """A server that knows clients by their certificates alone is asked with one."""
    made = manifests(
        {
            "valkey": {"enabled": False},
            "redis": {"url": "rediss://host:6380", "tls": {"enabled": True, "clientSecret": "client"}},
            "workers": {"tools": {"autoscaling": {"enabled": True}}},
        }
    )
    authentication = found(made, "TriggerAuthentication", "scaler")
    assert [each["parameter"] for each in authentication["spec"]["secretTargetRef"]] == ["cert", "key"]
    [*triggers] = found(made, "ScaledObject", "worker-tools")["spec"]["triggers"]
    assert [each["authenticationRef"] for each in triggers] == [{"name": authentication["metadata"]["name"]}] * 2


def test_valkey_keeps_what_it_was_told() -> None:
    """It writes an append-only file to a volume, evicts nothing, and only pods of the release and KEDA reach it."""
    made = manifests(INTERNAL)
    arguments = found(made, "StatefulSet", "valkey")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--appendonly=yes", "--maxmemory-policy=noeviction", "--aclfile=/run/secrets/valkey/users.acl"} <= set(arguments)
    [rule] = found(made, "NetworkPolicy", "valkey")["spec"]["ingress"]
    assert len(rule["from"]) == 2


def test_prometheus_finds_every_pod_that_has_metrics() -> None:
    """Each workload of ours has a service with a port named health, which the monitor scrapes and a policy lets it reach."""
    made = manifests(INTERNAL)
    monitor = found(made, "ServiceMonitor", "toolbus")["spec"]
    services = [each for each in made if each["kind"] == "Service" and any(port["name"] == "health" for port in each["spec"]["ports"])]
    assert {each["spec"]["selector"][f"{LABEL}component"] for each in services} == {"worker-only", "gateway", "exporter", "history"}
    for each in services:
        component = each["spec"]["selector"][f"{LABEL}component"]
        [health, *_] = found(made, "NetworkPolicy", component)["spec"]["ingress"]
        assert health["ports"] == [{"port": "health", "protocol": "TCP"}]
        assert monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    assert monitor["endpoints"][0] == {"port": "health", "path": "/metrics", "interval": "15s"}
    assert found(made, "PrometheusRule", "toolbus")["spec"]["groups"]
    assert found(made, "ConfigMap", "dashboards")["data"]


def test_the_notes_say_how_to_reach_it() -> None:
    """After an installation Helm prints a command for the gateway, and the groups, of which one is the chart's own."""
    notes = render({"workers": {"mine": {"targets": ["joke"]}}})["toolbus/templates/NOTES.txt"]
    assert "service/demo-toolbus-gateway 8001:80" in notes
    assert "Groups of workers: mine, tools." in notes
