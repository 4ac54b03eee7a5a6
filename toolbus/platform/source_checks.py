"""Checks of one source of a recorded tool: whether a host could run it, and whether it may be stored."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping

from toolbus.platform.records import ToolSource
from toolbus.platform.urls import check_url
from toolbus.platform.values import (
    check_folder,
    check_id,
    check_number,
    check_plain,
    check_text,
    check_value,
    check_variable,
    seems_secret,
    wrong,
)
from toolbus.results import DescriptorError

AUTH: Mapping[str, tuple[str, ...]] = {
    "apiKey": ("in", "name", "value"),
    "basic": ("username", "password"),
    "bearer": ("token",),
    "oauth2": ("token_url", "client_id", "client_secret"),
}
"""Kinds of authorization of requests to an API, with the fields of ``auth`` that each needs."""

AUTH_PLACES = ("header", "query", "cookie")
"""Places that the key of ``apiKey`` may be in."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_PLACEHOLDER = re.compile(r"\{[^{}/\s]{1,128}\}")
_PORTS = re.compile(r"([0-9]{1,5}):([0-9]{1,5})(?:/(?:tcp|udp))?")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,255}")
_MEMORY = re.compile(r"[0-9]{1,12}[bkmgBKMG]?")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_GPUS = re.compile(r"[A-Za-z0-9\"=,._:-]{1,200}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MOST_WITHIN = 3_600.0
_MOST_TEXT = 4_096
# With these, and all below, a container is the host. The host looks again, at what links lead to.
_HOSTS_OWN = ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/var/run", "/root", "/var/lib/docker", "/var/lib/containers")
# Folders that hold one of these, or everybody's files.
_TOO_WIDE = frozenset({"/", "/var", "/var/lib", "/home"})
# Fields of ``auth`` that are no secrets.
_OPEN = frozenset({"type", "in", "name", "token_url", "scope"})
# Fields that say nothing of other types.
_CONTAINERS = ("image", "ports", "mounts", "gpus")


def check_source(source: ToolSource, path: str) -> None:
    """Check one source.

    Args:
        path: of the source in its record, for the error.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    _OF_TYPES[source.type](source, path)
    _check_endpoint(source, path)
    _check_ready(source, path)
    check_number(source.internal_port, 0, 65_535, f"{path}.internal_port")
    check_number(source.cpus, 0, 10_000, f"{path}.cpus")
    if source.memory and _MEMORY.fullmatch(source.memory) is None:
        raise wrong(source.memory, "an amount of memory such as 512m", f"{path}.memory")
    if source.network and _NETWORK.fullmatch(source.network) is None:
        raise wrong(source.network, "bridge, host, or the name of a network", f"{path}.network")
    for index, label in enumerate(source.hosts):
        check_id(label, f"{path}.hosts[{index}]")
    for index, word in enumerate(source.command):
        where = f"{path}.command[{index}]"
        check_text(word, where, _MOST_TEXT)
        if seems_secret(word):
            raise DescriptorError("it seems to hold a secret, which everybody could read here: pass it by env", path=where)
    for name, value in source.env.items():
        check_variable(name, f"{path}.env")
        check_value(name, value, f"{path}.env.{name}")
    _check_fields(source.headers, f"{path}.headers", lambda name: _HEADER.fullmatch(name) is not None)
    _check_fields(source.query, f"{path}.query", lambda name: bool(name) and name.isprintable())


def _local(source: ToolSource, path: str) -> None:
    if not source.host_dir:
        raise DescriptorError("a local source needs the folder of its project", path=f"{path}.host_dir")
    check_folder(source.host_dir, f"{path}.host_dir")
    _only(source, path, (*_CONTAINERS, "url", "auth"))


def _docker(source: ToolSource, path: str) -> None:
    if not source.image and not source.host_dir:
        raise DescriptorError("a docker source needs an image, or the folder of its build files (host_dir)", path=f"{path}.image")
    if source.image and _IMAGE.fullmatch(source.image) is None:
        raise wrong(source.image, "the name of an image", f"{path}.image")
    check_folder(source.host_dir, f"{path}.host_dir")
    for index, pair in enumerate(source.ports):
        found = _PORTS.fullmatch(pair)
        if found is None or not all(0 <= int(port) <= 65_535 for port in found.groups()):
            raise wrong(pair, "host:container, two ports", f"{path}.ports[{index}]")
    for index, mount in enumerate(source.mounts):
        _check_mount(mount, f"{path}.mounts[{index}]")
    if source.gpus and _GPUS.fullmatch(source.gpus) is None:
        raise wrong(source.gpus, "what `docker run --gpus` takes", f"{path}.gpus")
    _only(source, path, ("url", "auth"))


def _remote(source: ToolSource, path: str) -> None:
    base, endpoint = source.api
    check_url(base, f"{path}.{'url' if endpoint == source.endpoint_path else 'endpoint_path'}")
    check_auth(source.auth, f"{path}.auth")
    _only(source, path, (*_CONTAINERS, "host_dir", "command", "env"))


def check_auth(auth: Mapping[str, str], path: str) -> None:
    """Check how requests to an API are authorized; see ``AUTH``.

    Raises:
        DescriptorError: a field is missing, unknown, or a secret.
    """
    if not auth:
        return
    kind = auth.get("type", "")
    if kind not in AUTH:
        raise wrong(kind, f"one of {', '.join(AUTH)}", f"{path}.type")
    for name in AUTH[kind]:
        if not auth.get(name):
            raise DescriptorError(f"{kind} needs it", path=f"{path}.{name}")
    for name, value in auth.items():
        if name not in {"type", *AUTH[kind], *(["scope"] if kind == "oauth2" else [])}:
            raise DescriptorError(f"{kind} has no such field", path=f"{path}.{name}")
        if name not in _OPEN:
            check_value(name, value, f"{path}.{name}")
        elif seems_secret(value) or not value.isprintable():
            raise DescriptorError("it seems to hold a secret, or what can't be sent", path=f"{path}.{name}")
    if kind == "oauth2":
        check_url(auth["token_url"], f"{path}.token_url")
    if kind == "apiKey" and auth["in"] not in AUTH_PLACES:
        raise wrong(auth["in"], f"one of {', '.join(AUTH_PLACES)}", f"{path}.in")


_OF_TYPES: Mapping[str, Callable[[ToolSource, str], None]] = {"local": _local, "docker": _docker, "remote": _remote}


def _only(source: ToolSource, path: str, others: tuple[str, ...]) -> None:
    for name in others:
        if getattr(source, name):
            raise DescriptorError(f"a {source.type} source has no {name}", path=f"{path}.{name}")


def _check_mount(mount: str, path: str) -> None:
    outside, colon, rest = mount.partition(":")
    inside, _, mode = rest.partition(":")
    if not colon or not outside.startswith("/") or not inside.startswith("/") or mode not in {"", "ro", "rw"}:
        raise wrong(mount, "host:container, two absolute paths", path)
    check_folder(outside, path)
    check_folder(inside, path)
    real = f"/{posixpath.normpath(outside).lstrip('/')}"
    if real in _TOO_WIDE or any(f"{real}/".startswith(f"{each}/") for each in _HOSTS_OWN):
        raise DescriptorError(f"with {outside} the container could do all that the host can: mount a folder of its own", path=path)


def _check_endpoint(source: ToolSource, path: str) -> None:
    where, endpoint = f"{path}.endpoint_path", source.api[1] if source.type == "remote" else source.endpoint_path
    if not endpoint.startswith("/") or endpoint.startswith("//"):
        raise wrong(endpoint, "a path that begins with one '/'", where)
    if not endpoint.isprintable() or any(each in endpoint for each in " \\#?"):
        raise wrong(endpoint, "a path without spaces, '\\', '?' and '#'", where)
    if any(part in {".", ".."} for part in endpoint.split("/")):
        raise wrong(endpoint, "a path without '.' and '..'", where)
    if any(brace in _PLACEHOLDER.sub("", endpoint) for brace in "{}"):
        raise wrong(endpoint, "a path whose braces are {name} of an argument", where)
    if source.http_method not in METHODS:
        raise wrong(source.http_method, f"one of {', '.join(METHODS)}", f"{path}.http_method")


def _check_ready(source: ToolSource, path: str) -> None:
    kind, colon, said = source.ready.partition(":")
    named = kind == "path" and said.startswith("/") and said.isprintable() and " " not in said
    if source.ready != "port" and not named and not (colon and kind == "log" and said):
        raise wrong(source.ready, "port, path:/…, or log:TEXT", f"{path}.ready")
    check_plain(said, f"{path}.ready")
    check_number(source.ready_within, 0.1, _MOST_WITHIN, f"{path}.ready_within")


def _check_fields(fields: Mapping[str, str], path: str, is_name: Callable[[str], bool]) -> None:
    for name, value in fields.items():
        if not is_name(name):
            raise wrong(name, "the name of a field", path)
        check_value(name, value, f"{path}.{name}")
        if any(each in value for each in "\r\n"):
            raise DescriptorError("it has a line break", path=f"{path}.{name}")
