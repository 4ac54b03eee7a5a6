"""The command line of a container: what a source may say, and what is refused."""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import pytest

from toolbus.platform.backends.containers import Container, ContainerCli, Ports, create_words, image_of, ports_of
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.records import ToolSource

DOCKER, PODMAN = ContainerCli("/usr/bin/docker"), ContainerCli("/usr/bin/podman")


def words(cli: ContainerCli = DOCKER, **fields: object) -> list[str]:
    """Return the command line of a source."""
    return create_words(ToolSource(type="docker", **fields), "image", "name", Ports(80, 8080), {"toolbus.tool": "t"}, cli)[0]


def after(found: list[str], option: str) -> list[str]:
    """Return the values of an option."""
    return [value for name, value in pairwise(found) if name == option]


@pytest.mark.parametrize(
    ("fields", "inside", "outside", "published"),
    [
        ({}, 7777, 7777, ("127.0.0.1:7777:7777",)),
        ({"internal_port": 80}, 80, 7777, ("127.0.0.1:7777:80",)),
        ({"internal_port": 80, "ports": ("8080:80",)}, 80, 8080, ("127.0.0.1:8080:80",)),
        ({"ports": ("0:80", "9000:90")}, 80, 7777, ("127.0.0.1:7777:80", "127.0.0.1:9000:90")),
        ({"ports": ("53:53/udp", "8080:80/tcp")}, 80, 8080, ("127.0.0.1:53:53/udp", "127.0.0.1:8080:80/tcp")),
        ({"internal_port": 80, "ports": ("9000:90",)}, 80, 7777, ("127.0.0.1:9000:90", "127.0.0.1:7777:80")),
        ({"network": "host"}, 7777, 7777, ()),
        ({"network": "host", "internal_port": 80, "ports": ("8080:80",)}, 80, 80, ()),
    ],
)
def test_ports_are_mapped_on_this_machine_alone(fields: dict[str, object], inside: int, outside: int, published: tuple[str, ...]) -> None:
    """The program's port is the record's or a free one; the host reaches it on its own address."""
    found = ports_of(ToolSource(type="docker", **fields), 7777)
    assert (found.inside, found.outside, found.published) == (inside, outside, published)


def test_every_field_has_its_option(tmp_path: Path) -> None:
    """Memory without swap, processors, GPUs, network, mounts and the command are on the command line."""
    (tmp_path / "data").mkdir()
    found = words(
        memory="512m",
        cpus=1.5,
        gpus="all",
        network="tools",
        command=("serve", "--port", "{port}"),
        host_dir=str(tmp_path),
        mounts=("data:/data:ro",),
    )
    assert after(found, "--memory") == after(found, "--memory-swap") == ["512m"]
    assert after(found, "--cpus") == ["1.5"]
    assert after(found, "--gpus") == ["all"]
    assert after(found, "--network") == ["tools"]
    assert after(found, "--mount") == [f"type=bind,source={tmp_path}/data,target=/data,readonly"]
    assert after(found, "--label") == ["toolbus.tool=t"]
    assert after(found, "--security-opt") == ["no-new-privileges"]
    assert found[-4:] == ["image", "serve", "--port", "80"]
    assert "--privileged" not in found
    assert "--init" in found
    assert "--init" not in words(PODMAN)


def test_secrets_are_in_no_list_of_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Values go through the command line's own environment; those that it needs for itself are the exception."""
    monkeypatch.setenv("TOKEN_OF_TESTS", "s3cret")
    (tmp_path / "key").write_text("k3y\n")
    fields = {"env": {"TOKEN": "env:TOKEN_OF_TESTS", "KEY": f"file:{tmp_path}/key", "HOME": "/data", "PLAIN": "x"}}
    found, variables = create_words(ToolSource(type="docker", **fields), "image", "name", Ports(80, 80), {}, DOCKER)
    assert after(found, "--env") == ["PORT", "TOKEN", "KEY", "HOME=/data", "PLAIN"]
    assert (variables["TOKEN"], variables["KEY"], variables["PORT"]) == ("s3cret", "k3y", "80")
    assert not any("s3cret" in word or "k3y" in word for word in found)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"memory": "much"}, "memory is 'much'"),
        ({"memory": "--privileged"}, "memory is"),
        ({"cpus": -1.0}, "cpus is -1"),
        ({"gpus": "all --privileged"}, "gpus is"),
        ({"network": "container:other"}, "network is"),
        ({"network": "--privileged"}, "network is"),
        ({"env": {"A=B": "x"}}, "env is"),
        ({"env": {"A": "env:NOTHING_OF_TESTS"}}, "env:NOTHING_OF_TESTS has no value"),
        ({"mounts": ("/tmp",)}, "the mount '/tmp' is none"),
        ({"mounts": ("/tmp:data",)}, "absolute path in the container"),
        ({"mounts": ("/tmp:/data:shared",)}, "is none"),
        ({"mounts": ("/tmp,readonly:/data",)}, "a character"),
        ({"mounts": ("/nothing/here:/data",)}, "is not on this host"),
        ({"mounts": ("data:/data",)}, "no absolute path"),
        ({"mounts": ("/:/machine",)}, "the machine itself"),
        ({"mounts": ("/proc:/p",)}, "the machine itself"),
        ({"mounts": ("/etc:/e:ro",)}, "the machine itself"),
        ({"mounts": ("/var:/v",)}, "the machine itself"),
        ({"mounts": ("/tmp/../run:/r",)}, "the machine itself"),
        ({"mounts": ("/usr:/usr",)}, "add :ro"),
        ({"mounts": ("/home:/data:ro",)}, "the machine itself"),
        ({"mounts": ("/root:/data:ro",)}, "the machine itself"),
        ({"mounts": ("/run/lock:/data",)}, "the machine itself"),
    ],
)
def test_what_no_container_may_have_is_refused(fields: dict[str, object], said: str) -> None:
    """Options in a value, secrets that are missing, and mounts that would be the machine are one clear line."""
    with pytest.raises(CannotStart, match=said.replace("(", r"\(")) as raised:
        words(**fields)
    assert "\n" not in str(raised.value)
    assert raised.value.permanent


def test_links_to_the_machine_are_seen_through(tmp_path: Path) -> None:
    """A link in the place of a mount counts as what it leads to."""
    (tmp_path / "link").symlink_to("/proc")
    with pytest.raises(CannotStart, match="the machine itself"):
        words(mounts=(f"{tmp_path}/link:/data",))


def test_sockets_are_not_mounted_wherever_they_lie(tmp_path: Path) -> None:
    """An engine's socket can be anywhere, so no socket is mounted, neither by its own path nor with a folder around it."""
    deep = tmp_path / "data" / "deep"
    deep.mkdir(parents=True)
    assert words(mounts=(f"{tmp_path}/data:/data",))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(deep / "file.txt"))
        for each in (f"{deep}/file.txt:/x", f"{deep}:/x:ro", f"{tmp_path}/data:/x"):
            with pytest.raises(CannotStart, match="machine's master") as raised:
                words(mounts=(each,))
            assert raised.value.permanent


def test_containers_that_serve_have_no_more_rights_than_those_that_try() -> None:
    """Every capability is dropped but those over own files and users."""
    found = words()
    assert after(found, "--cap-drop") == ["ALL"]
    assert after(found, "--cap-add") == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID"]


@pytest.mark.parametrize("ports", [("80",), ("0:0",), ("80:99999",), ("x:80",), ("-p:80",), ("127.0.0.1:80:80",)])
def test_ports_that_are_none_are_refused(ports: tuple[str, ...]) -> None:
    """A pair of numbers is wanted."""
    with pytest.raises(CannotStart, match="give host:container"):
        ports_of(ToolSource(type="docker", ports=ports), 7777)


def test_a_program_without_a_network_can_not_be_called() -> None:
    """Nobody would reach its port."""
    with pytest.raises(CannotStart, match="nobody can call it"):
        ports_of(ToolSource(type="docker", network="none"), 7777)


def test_images_have_names() -> None:
    """A folder without an image's name gets one of the tool; options are no names."""
    assert image_of(ToolSource(type="docker", host_dir="/x"), "My_Tool.v2") == "toolbus/my-tool-v2:latest"
    assert image_of(ToolSource(type="docker", image="registry:5000/a/b:1@sha256:00"), "t") == "registry:5000/a/b:1@sha256:00"
    for image in ("", "--privileged", "a b", "-v"):
        with pytest.raises(CannotStart, match="image is"):
            image_of(ToolSource(type="docker", image=image), "t")


def test_podman_is_used_where_only_that_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker comes first; with neither, an operator is told."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotStart, match="neither docker nor podman is installed"):
        ContainerCli.found()
    for name in ("podman", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert ContainerCli.found().name == name


@pytest.mark.parametrize(
    ("text", "said", "away"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "start it", True),
        ("error during connect: Get http://x: EOF", "start it", True),
        ("permission denied while trying to connect to the Docker daemon socket", "add it to the group docker", True),
        ("Error response from daemon: Conflict", "docker create failed: Error response from daemon: Conflict", False),
        ("", "it said nothing", False),
    ],
)
def test_failures_are_one_line(text: str, said: str, away: bool) -> None:
    """A daemon that is away is told apart from a command that it refuses."""
    failed = DOCKER.failure("create", text)
    assert said in str(failed)
    assert failed.away is away
    assert "\n" not in str(failed)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("networks", "is_cut_off"),
    [
        ({"bridge": {"NetworkID": ""}}, True),
        ({"bridge": {"NetworkID": "5f"}}, False),
        ({"a": {"NetworkID": ""}, "b": {"NetworkID": "1"}}, False),
        ({}, False),
    ],
)
async def test_a_container_without_a_network_is_told_from_others(
    monkeypatch: pytest.MonkeyPatch, networks: dict[str, dict[str, str]], is_cut_off: bool
) -> None:
    """A daemon without a bridge names its network and gives it no id; what it does not say is no network's lack."""

    async def inspect(self: ContainerCli, *names: str) -> list[dict[str, object]]:
        return [{"NetworkSettings": {"Networks": networks}}]

    monkeypatch.setattr(ContainerCli, "inspect", inspect)
    assert await Container(DOCKER, "name", lambda _: None).is_cut_off() is is_cut_off
