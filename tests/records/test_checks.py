"""A wrong record is refused, with the entry and the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.records.made import recorded
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import DescriptorError
from toolbus.platform.documents import encode, key_of, read, read_written
from toolbus.platform.records import BackendRuntime, RecordedTool, Running, ToolSource


def sourced(type: str = "local", **fields: Any) -> RecordedTool:
    """Return a tool with one source."""
    usual: dict[str, Any] = {"local": {"host_dir": "tools/x"}, "docker": {"image": "x"}, "remote": {"url": "https://api.example/v1"}}
    return recorded("x", sources=(ToolSource(**{"type": type, **usual.get(type, {}), **fields}),))


def nested(levels: int) -> dict[str, Any]:
    """Return a schema of so many levels."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


GOOD = {
    "local": sourced(),
    "docker": sourced("docker", ports=("8080:80", "0:53/udp"), mounts=("/data:/data:ro",), gpus="all", memory="512m", cpus=1.5),
    "docker, built": sourced("docker", image="", host_dir="/srv/x"),
    "remote": sourced("remote", headers={"Authorization": "env:TOKEN", "X-Version": "2"}, query={"key": "file:/run/key"}),
    "ready by a path": sourced(ready="path:/health"),
    "ready by a line": sourced(ready="log:listening on"),
    "placeholders": sourced(endpoint_path="/v1/{id}/run"),
    "a remote program with the five fields of its design": sourced("remote", url="", endpoint_path="https://api.example/v1/{a}"),
    "a remote program at a port": sourced("remote", url="", endpoint_path="/run", internal_port=9000),
    "a reference within": sourced("remote", headers={"Authorization": "Bearer {env:TOKEN}"}),
    "plain variables": sourced(env={"MODE": "fast", "TOKEN_FILE": "file:/run/token"}),
    "a schema": recorded("x", input_schema={"type": "object", "properties": {"a": {"type": "string"}}}),
}

BAD: dict[str, tuple[Any, str]] = {
    "an id with a slash": (recorded("a/b"), "$.meta.tool_id"),
    "an id that is a folder": (recorded(".."), "$.meta.tool_id"),
    "an empty id": (recorded(""), "$.meta.tool_id"),
    "a long id": (recorded("a" * 65), "$.meta.tool_id"),
    "a long description": (recorded("x", description="a" * 30_000), "$.meta.description"),
    "a group's id": (recorded("x", group_ids=("a b",)), "$.meta.group_ids[0]"),
    "a status": (recorded("x", status="on"), "$.meta.status"),
    "a schema": (recorded("x", input_schema={"type": "objekt"}), "$.meta.input_schema"),
    "a schema of a list": (recorded("x", input_schema={"type": "array"}), "$.meta.input_schema.type"),
    "a schema that no host can publish": (recorded("x", input_schema=nested(300)), "$.meta.input_schema"),
    "a schema's pattern": (recorded("x", input_schema={"type": "object", "properties": {"a": {"pattern": "("}}}), "$.meta.input_schema"),
    "an output schema": (recorded("x", output_schema={"type": 5}), "$.meta.output_schema"),
    "a name that is not what it looks like": (
        recorded("x", input_schema={"type": "object", "properties": {"a\u202e": {}}}),
        "$.meta.input_schema.properties",
    ),
    "no source": (recorded("x", sources=()), "$.sources"),
    "many sources": (recorded("x", sources=17 * (ToolSource(type="local", host_dir="x"),)), "$.sources"),
    "no folder": (sourced(host_dir=""), "$.sources[0].host_dir"),
    "a folder outside": (sourced(host_dir="../etc"), "$.sources[0].host_dir"),
    "a folder outside, hidden": (sourced(host_dir="/srv/a/../../etc"), "$.sources[0].host_dir"),
    "a folder outside, by backslashes": (sourced(host_dir="a\\..\\.."), "$.sources[0].host_dir"),
    "a home": (sourced(host_dir="~/x"), "$.sources[0].host_dir"),
    "a folder with a NUL": (sourced(host_dir="a\0b"), "$.sources[0].host_dir"),
    "a local image": (sourced(image="x"), "$.sources[0].image"),
    "neither image nor folder": (sourced("docker", image=""), "$.sources[0].image"),
    "an image that is an option": (sourced("docker", image="--privileged"), "$.sources[0].image"),
    "a port": (sourced("docker", ports=("80:99999",)), "$.sources[0].ports[0]"),
    "a mount of everything": (sourced("docker", mounts=("/:/host",)), "$.sources[0].mounts[0]"),
    "a mount of docker": (sourced("docker", mounts=("/var/run/docker.sock:/s",)), "$.sources[0].mounts[0]"),
    "a mount of everything, twice": (sourced("docker", mounts=("//:/host",)), "$.sources[0].mounts[0]"),
    "a mount of everything, by a dot": (sourced("docker", mounts=("/.:/host",)), "$.sources[0].mounts[0]"),
    "a mount outside": (sourced("docker", mounts=("/data/../etc:/x",)), "$.sources[0].mounts[0]"),
    **{
        f"a mount of {path}": (sourced("docker", mounts=(f"{path}:/h:ro",)), "$.sources[0].mounts[0]")
        for path in ("/proc/1/root", "/etc", "/root/.ssh", "/home", "/var", "/run/user/1000", "/dev/sda", "//etc/./ssh", "/boot/")
    },
    "a network of another container": (sourced("docker", network="container:abc"), "$.sources[0].network"),
    "a relative mount": (sourced("docker", mounts=("data:/x",)), "$.sources[0].mounts[0]"),
    "memory": (sourced("docker", memory="lots"), "$.sources[0].memory"),
    "CPUs": (sourced("docker", cpus=-1.0), "$.sources[0].cpus"),
    "a network that is an option": (sourced("docker", network="--net"), "$.sources[0].network"),
    "gpus": (sourced("docker", gpus="all --privileged"), "$.sources[0].gpus"),
    "an internal port": (sourced("docker", internal_port=70_000), "$.sources[0].internal_port"),
    "no URL": (sourced("remote", url=""), "$.sources[0].url"),
    "a whole URL with a password": (sourced("remote", url="", endpoint_path="https://me:x@api.example/v1"), "$.sources[0].endpoint_path"),
    "a whole URL beside a URL": (sourced("remote", endpoint_path="https://api.example/v1"), "$.sources[0].endpoint_path"),
    "a whole URL with a query": (sourced("remote", url="", endpoint_path="https://api.example/v1?a=1"), "$.sources[0].endpoint_path"),
    "a whole URL with a name for its host": (sourced("remote", url="", endpoint_path="https://{host}/v1"), "$.sources[0].endpoint_path"),
    "a file": (sourced("remote", url="file:///etc/passwd"), "$.sources[0].url"),
    "a URL without a host": (sourced("remote", url="https:///x"), "$.sources[0].url"),
    "a URL with a password": (sourced("remote", url="https://me:hunter2@api.example"), "$.sources[0].url"),
    "a URL with a query": (sourced("remote", url="https://api.example?key=1"), "$.sources[0].url"),
    "a URL that is none": (sourced("remote", url="https://[::1"), "$.sources[0].url"),
    "a URL's port": (sourced("remote", url="https://api.example:99999"), "$.sources[0].url"),
    "a path without a slash": (sourced(endpoint_path="run"), "$.sources[0].endpoint_path"),
    "a path to another host": (sourced(endpoint_path="//evil.example/run"), "$.sources[0].endpoint_path"),
    "a path upwards": (sourced(endpoint_path="/a/../b"), "$.sources[0].endpoint_path"),
    "a path with a brace": (sourced(endpoint_path="/{a"), "$.sources[0].endpoint_path"),
    "a method": (sourced(http_method="FETCH"), "$.sources[0].http_method"),
    "a method in lower case": (sourced(http_method="post"), "$.sources[0].http_method"),
    "a label": (sourced(hosts=("gpu box",)), "$.sources[0].hosts[0]"),
    "ready": (sourced(ready="soon"), "$.sources[0].ready"),
    "ready by no line": (sourced(ready="log:"), "$.sources[0].ready"),
    "never ready": (sourced(ready_within=float("inf")), "$.sources[0].ready_within"),
    "ready within NaN": (sourced(ready_within=float("nan")), "$.sources[0].ready_within"),
    "a variable's name": (sourced(env={"A B": "x"}), "$.sources[0].env"),
    "a secret variable": (sourced(env={"OPENAI_API_KEY": "hunter2"}), "$.sources[0].env.OPENAI_API_KEY"),
    "a secret value": (sourced(env={"MODE": "sk-abcdefghijklmnopqrstuv"}), "$.sources[0].env.MODE"),
    "a database's password": (sourced(env={"DATABASE_URL": "postgres://me:hunter2@db/x"}), "$.sources[0].env.DATABASE_URL"),
    "a reference to nothing": (sourced(env={"A": "env:"}), "$.sources[0].env.A"),
    "a setting of toolbus": (sourced(env={"A": "env:TOOLBUS_PASSWORD"}), "$.sources[0].env.A"),
    "a secret beside a reference": (sourced(env={"A": "{env:X} sk-abcdefghijklmnopqrstuv"}), "$.sources[0].env.A"),
    "a relative file": (sourced(env={"A": "file:secrets/a"}), "$.sources[0].env.A"),
    "a secret header": (sourced("remote", headers={"Authorization": "Bearer hunter2"}), "$.sources[0].headers.Authorization"),
    "a header with a line break": (sourced("remote", headers={"X-A": "a\r\nX-B: b"}), "$.sources[0].headers.X-A"),
    "a header of the client's": (sourced("local", headers={"content-Length": "3"}, host_dir="/srv/tool"), "$.sources[0].headers"),
    "a caller's name": (sourced("local", headers={"toolbus-user": "root"}, host_dir="/srv/tool"), "$.sources[0].headers"),
    "a header's name": (sourced("remote", headers={"X A": "a"}), "$.sources[0].headers"),
    "a secret in a query": (sourced("remote", query={"api_key": "hunter2"}), "$.sources[0].query.api_key"),
    "a secret in a command": (sourced(command=("run", "--token=hunter2")), "$.sources[0].command[1]"),
    "more warm than there are": (recorded("x", running=Running(keep_warm=3, instances=2)), "$.running.keep_warm"),
    "no instances": (recorded("x", running=Running(instances=0)), "$.running.instances"),
    "a negative time": (recorded("x", running=Running(idle_stop=-1)), "$.running.idle_stop"),
    "NaN": (recorded("x", running=Running(timeout=float("nan"))), "$.running.timeout"),
    "an effect": (recorded("x", running=Running(effect="twice")), "$.running.effect"),
    "a revision": (recorded("x", revision=0), "$.revision"),
    "a digest": (recorded("x", code="../x"), "$.code"),
    "an order of others": (ToolGroup("g", tool_ids=("a",), usage_order=("b",)), "$.usage_order[0]"),
    "a runtime's id": (BackendRuntime(backend_runtime=" "), "$.backend_runtime"),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_record_is_read_as_it_was_written(case: str) -> None:
    """It has the same document each time."""
    document = encode(GOOD[case])
    assert read(key_of(GOOD[case]), document) == GOOD[case]
    assert encode(read(key_of(GOOD[case]), document)) == document


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_field_is_named(case: str) -> None:
    """When it is to be stored, and when it was stored by other means; a secret is not repeated."""
    record, path = BAD[case]
    with pytest.raises(DescriptorError) as refused:
        encode(record)
    assert str(refused.value).endswith(f" - at `{path}`")
    assert str(refused.value).startswith(f"{key_of(record)}: ")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(DescriptorError):
        read(key_of(record), msgspec.json.encode(record))


WRITTEN: dict[str, tuple[str, Any, str]] = {
    "no object": ("recorded/x", [], "$"),
    "an unknown field": ("recorded/x", {"meta": {}, "source": []}, "$.source"),
    "an unknown field of a source": (
        "recorded/x",
        {"meta": {}, "sources": [{"type": "local", "host_dir": "a", "prot": 1}]},
        "$.sources[0].prot",
    ),
    "an unknown source": ("recorded/x", {"meta": {}, "sources": [{"type": "kubernetes"}]}, "$.sources[0].type"),
    "a wrong type": ("recorded/x", {"meta": {"group_ids": "a"}}, "$.meta.group_ids"),
    "no meta": ("recorded/x", {"sources": []}, "$"),
    "another id": ("recorded/x", {"meta": {"tool_id": "y"}, "sources": [{"type": "local", "host_dir": "a"}]}, "$.meta.tool_id"),
    "another group": ("group/x", {"group_id": "y"}, "$.group_id"),
    "an unknown field of a group": ("group/x", {"usage_oder": []}, "$.usage_oder"),
    "another runtime": ("backend-runtime/x", {"backend_runtime": "y"}, "$.backend_runtime"),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_a_person_wrote_is_checked_more_strictly(case: str) -> None:
    """A field that does not exist is a mistake."""
    key, document, path = WRITTEN[case]
    with pytest.raises(DescriptorError) as refused:
        read_written(key, document)
    assert str(refused.value).startswith(f"{key}: ")
    assert str(refused.value).endswith(f" - at `{path}`")


def test_the_id_may_be_left_out() -> None:
    """It is in the key, and free content is not looked at."""
    document = {"meta": {"input_schema": {"type": "object", "x-any": 1}}, "sources": [{"type": "local", "host_dir": "a"}]}
    assert read_written("recorded/x", document).tool_id == "x"
    assert read_written("group/g", {"name": "G"}) == ToolGroup("g", "G")
    assert read_written("backend-runtime/r", {}) == BackendRuntime(backend_runtime="r")
