"""Checks of records beyond their types: what could not be served, called or shown is refused, with the field's name."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.schema.dialects import check_possible
from toolbus.bus.support.display import shortened
from toolbus.bus.values.descriptors import effect_flaw
from toolbus.bus.values.naming import GROUP_ID, RECORD_ID, TOOL_NAME
from toolbus.bus.values.results import DescriptorError
from toolbus.platform.records import BackendRuntime, RecordedTool, ToolMeta, ToolSource
from toolbus.platform.search import descriptor_of

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of an environment variable."""

_SECRET_NAME = re.compile(
    r"secret|token|passw|pwd|credential|authorization|cookie|session[-_]?id|(?:api|access|private|signing|auth)[-_]?key|(?:^|[-_])(?:key|auth)$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"(?:bearer|basic) \S|-----BEGIN|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16}|\bgh[pousr]_[A-Za-z0-9]{16}|\bgithub_pat_"
    r"|\bxox[a-z]-|\bAKIA[A-Z0-9]{12}|\beyJ[A-Za-z0-9_-]{10,}\.|://[^/\s@]*:[^/\s@]+@|(?:token|secret|passw(?:or)?d|api[-_]?key)=(?!env:|file:|\{|$).",
    re.IGNORECASE,
)
# Places of values within a text, and what may stand around one that is a secret.
_WITHIN = re.compile(r"\{((?:env|file):[^{}]+)\}")
_AROUND = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}[ =]?|")
_SETTINGS = "TOOLBUS_"
_MOST_TOLD = 80


def check_id(value: str, path: str) -> None:
    """Check the id of a tool, a group, a runtime or a host's label.

    Raises:
        DescriptorError: it is none.
    """
    if RECORD_ID.match(value) is None:
        raise wrong(value, "1 to 64 letters, digits, '_', '.' and '-', beginning with a letter or digit", path)


def check_text(value: str, path: str, most: int) -> None:
    """Check a text for people and models.

    Raises:
        DescriptorError: it is longer than ``most`` characters, or has a NUL.
    """
    if len(value) > most:
        raise DescriptorError(f"it has {len(value):,} characters, over the limit of {most:,}", path=path)
    check_plain(value, path)


def check_plain(value: str, path: str) -> None:
    """Check that a text has no NUL, which ends texts in commands, paths and variables.

    Raises:
        DescriptorError: it has one.
    """
    if "\0" in value:
        raise DescriptorError("it has a NUL", path=path)


def check_folder(value: str, path: str) -> None:
    """Check a path of the host: absolute, or relative to the folder in which the host works; never out of it by ``..``.

    Raises:
        DescriptorError: it is unsafe.
    """
    if not value.isprintable():
        raise wrong(value, "a path of printable characters", path)
    if ".." in PurePosixPath(value.replace("\\", "/")).parts:
        raise wrong(value, "a path without '..'", path)
    if value.startswith("~"):
        raise wrong(value, "a path without '~', which nobody expands", path)


def check_variable(name: str, path: str) -> None:
    """Check the name of an environment variable.

    Raises:
        DescriptorError: it is none.
    """
    if VARIABLE.fullmatch(name) is None:
        raise wrong(name, "the name of a variable: letters, digits and '_'", path)


def check_value(name: str, value: str, path: str) -> None:
    """Check a value that may be ``env:NAME`` or ``file:PATH`` of the host, or have ``{env:NAME}`` within; a secret must be one of these.

    Raises:
        DescriptorError: it is a secret, or names no place; the message does not repeat it.
    """
    check_plain(value, path)
    if value.startswith(("env:", "file:")):
        _check_place(value, path)
        return
    for found in _WITHIN.finditer(value):
        _check_place(found[1], path)
    around = _WITHIN.sub("", value)
    placed = around != value and _AROUND.fullmatch(around)
    if seems_secret(around) or (value and not placed and _SECRET_NAME.search(name)):
        raise DescriptorError("it seems to be a secret, which everybody could read here: give env:NAME or file:PATH of the host", path=path)


def _check_place(source: str, path: str) -> None:
    kind, _, place = source.partition(":")
    if kind == "env":
        check_variable(place, path)
        if place.startswith(_SETTINGS):
            raise wrong(source, f"a variable of the tool's: those of {_SETTINGS}… are settings of toolbus", path)
    else:
        if not place.startswith("/"):
            raise wrong(source, "file: with an absolute path", path)
        check_folder(place, path)


def seems_secret(value: str) -> bool:
    """Return whether a text looks like a key, a token, or a URL with a password."""
    return _SECRET_VALUE.search(value) is not None


def check_number(value: float, least: float, most: float, path: str) -> None:
    """Check a number, NaN included.

    Raises:
        DescriptorError: it is out of its range.
    """
    if not least <= value <= most:
        raise DescriptorError(f"{value:g} is not a number from {least:g} to {most:g}", path=path)


def wrong(value: str, expected: str, path: str) -> DescriptorError:
    """Return the error for a value that is not what is expected."""
    return DescriptorError(f"{shortened(repr(value), _MOST_TOLD)} is not {expected}", path=path)


# Clients turn other hosts into different ones, which may be numbers of private addresses.
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def check_url(url: str, path: str) -> None:
    """Check a URL.

    Args:
        path: of the URL in its record, for the error.

    Raises:
        DescriptorError: it is none, holds a password or a query, or has a host that clients don't read as it is written.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise DescriptorError(f"it is no URL: {error}", path=path) from None
    if parts.username is not None or parts.password is not None:
        raise DescriptorError("it has a user or password, which everybody could read here: use headers", path=path)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable() or any(each in url for each in " \\"):
        raise wrong(url, "an http:// or https:// URL", path)
    if parts.query or parts.fragment:
        raise DescriptorError("it has a query or fragment; queries belong into `query`", path=path)
    if port == 0:
        raise wrong(url, "a URL with a port that can be", path)
    if not _is_plain(parts.hostname):
        raise wrong(parts.hostname, "a plain host: give a name in ASCII (xn--… for others), or a whole address such as 192.0.2.1", path)


def _is_plain(host: str) -> bool:
    """Return whether every client takes a host for what is written: a name, or a whole address."""
    if ":" not in host and not (_NAME.fullmatch(host) and _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2])):
        return _NAME.fullmatch(host) is not None
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


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

FORMS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "image": (re.compile(r"[a-z0-9][a-z0-9._/:@-]{0,254}", re.IGNORECASE), "an image's name, like registry/name:tag"),
    "gpus": (re.compile(r"all|[0-9]{1,10}|device=[A-Za-z0-9,_-]{1,200}"), "all, a number, or device=0,1"),
    "memory": (re.compile(r"[1-9][0-9]{0,11}[bkmg]?", re.IGNORECASE), "a number with b, k, m or g, like 512m"),
    "network": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"), "bridge, host, or a network's name"),
}
"""The forms of a container's fields, and how they are told of."""

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
# They say how long a message is, what becomes of its connection, and on whose behalf a call runs, which the client knows.
_FRAMING = "connection content-length expect keep-alive proxy-connection te trailer transfer-encoding upgrade"
_OF_CLIENT = frozenset({*_FRAMING.split(), "toolbus-user"})
_MOST_WITHIN = 3_600.0
_MOST_TEXT = 4_096
# With these, and all below, a container is the host. The host looks again, at what links lead to.
_HOSTS_OWN = ("/proc", "/sys", "/dev", "/boot", "/etc", "/run", "/var/run", "/root", "/var/lib/docker", "/var/lib/containers")
# Folders that hold one of these, or everybody's files.
_TOO_WIDE = frozenset({"/", "/var", "/var/lib", "/home"})
# Fields of ``auth`` that are no secrets.
_OPEN = frozenset({"type", "in", "name", "token_url", "scope"})
# Fields that say nothing of a source of the type.
_CONTAINERS = ("image", "ports", "mounts", "gpus")
_FOREIGN: Mapping[str, tuple[str, ...]] = {
    "local": (*_CONTAINERS, "url", "auth"),
    "docker": ("url", "auth"),
    "remote": (*_CONTAINERS, "host_dir", "command", "env"),
}


def check_source(source: ToolSource, path: str) -> None:
    """Check one source.

    Args:
        path: of the source in its record, for the error.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    _OF_TYPES[source.type](source, path)
    for name in _FOREIGN[source.type]:
        if getattr(source, name):
            raise DescriptorError(f"a {source.type} source has no {name}", path=f"{path}.{name}")
    _check_endpoint(source, path)
    _check_ready(source, path)
    check_number(source.internal_port, 0, 65_535, f"{path}.internal_port")
    check_number(source.cpus, 0, 10_000, f"{path}.cpus")
    for name, (form, wanted) in FORMS.items():
        if (value := getattr(source, name)) and form.fullmatch(value) is None:
            raise wrong(value, wanted, f"{path}.{name}")
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
    _check_fields(source.headers, f"{path}.headers", _check_header)
    _check_fields(source.query, f"{path}.query", _check_parameter)


def _local(source: ToolSource, path: str) -> None:
    if not source.host_dir:
        raise DescriptorError("a local source needs the folder of its project", path=f"{path}.host_dir")
    check_folder(source.host_dir, f"{path}.host_dir")


def _docker(source: ToolSource, path: str) -> None:
    if not source.image and not source.host_dir:
        raise DescriptorError("a docker source needs an image, or the folder of its build files (host_dir)", path=f"{path}.image")
    check_folder(source.host_dir, f"{path}.host_dir")
    for index, pair in enumerate(source.ports):
        found = _PORTS.fullmatch(pair)
        if found is None or not all(0 <= int(port) <= 65_535 for port in found.groups()):
            raise wrong(pair, "host:container, two ports", f"{path}.ports[{index}]")
    for index, mount in enumerate(source.mounts):
        _check_mount(mount, f"{path}.mounts[{index}]")


def _remote(source: ToolSource, path: str) -> None:
    base, endpoint = source.api
    check_url(base, f"{path}.{'url' if endpoint == source.endpoint_path else 'endpoint_path'}")
    check_auth(source.auth, f"{path}.auth")


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
    if auth.get("in") == "header":
        _check_header(auth["name"], f"{path}.name")


_OF_TYPES: Mapping[str, Callable[[ToolSource, str], None]] = {"local": _local, "docker": _docker, "remote": _remote}


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


def _check_header(name: str, path: str) -> None:
    if _HEADER.fullmatch(name) is None:
        raise wrong(name, "the name of a header", path)
    if name.lower() in _OF_CLIENT:
        raise DescriptorError(f"the client that sends requests sets {name} itself", path=path)


def _check_parameter(name: str, path: str) -> None:
    if not name or not name.isprintable():
        raise wrong(name, "the name of a parameter", path)


def _check_fields(fields: Mapping[str, str], path: str, check_name: Callable[[str, str], None]) -> None:
    for name, value in fields.items():
        check_name(name, path)
        check_value(name, value, f"{path}.{name}")
        if any(each in value for each in "\r\n"):
            raise DescriptorError("it has a line break", path=f"{path}.{name}")


_DIGEST = re.compile(r"[0-9a-f]{0,128}")
_MOST_NAME = 200
# Most characters of the texts of tools, groups and runtimes.
_TEXTS = {"name": _MOST_NAME, "category": _MOST_NAME, "description": 20_000, "usage_example": 20_000}
_MOST_SECONDS = 30 * 86_400.0
_MOST_SOURCES = 16
# Least and most of each number of ``Running``.
_RUNNING = {
    "idle_stop": (0, _MOST_SECONDS),
    "keep_warm": (0, 64),
    "instances": (1, 64),
    "concurrency": (1, 10_000),
    "health_every": (0.1, 86_400),
    "stop_within": (0, 600),
    "restarts": (0, 1_000),
    "timeout": (0, _MOST_SECONDS),
}


def check_recorded(tool: RecordedTool) -> RecordedTool:
    """Check a tool's record; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_meta(tool.meta, "$.meta")
    if not tool.sources:
        raise DescriptorError("there is no place where it can run", path="$.sources")
    if len(tool.sources) > _MOST_SOURCES:
        raise DescriptorError(f"there are more than {_MOST_SOURCES} sources", path="$.sources")
    for index, source in enumerate(tool.sources):
        check_source(source, f"$.sources[{index}]")
    running = tool.running
    for name, (least, most) in _RUNNING.items():
        check_number(getattr(running, name), least, most, f"$.running.{name}")
    if running.keep_warm > running.instances:
        raise DescriptorError(f"{running.keep_warm} are kept warm of at most {running.instances} instances", path="$.running.keep_warm")
    if flaw := effect_flaw(running.effect):
        raise DescriptorError(flaw, path="$.running.effect")
    check_number(tool.revision, 1, 1e9, "$.revision")
    if _DIGEST.fullmatch(tool.code) is None:
        raise wrong(tool.code, "a digest in hexadecimal", "$.code")
    check_text(tool.made_by, "$.made_by", _MOST_NAME)
    # What no host could publish is not recorded.
    descriptor_of(tool)
    return tool


def check_meta(meta: ToolMeta, path: str) -> None:
    """Check what is told of a tool.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_id(meta.tool_id, f"{path}.tool_id")
    _check_texts(meta, path)
    if meta.backend_runtime:
        check_id(meta.backend_runtime, f"{path}.backend_runtime")
    for index, group in enumerate(meta.group_ids):
        check_id(group, f"{path}.group_ids[{index}]")
    for index, slug in enumerate(meta.tool_slug_ids):
        check_text(slug, f"{path}.tool_slug_ids[{index}]", _MOST_NAME)
    if meta.status not in {"active", "inactive"}:
        raise wrong(meta.status, "active or inactive", f"{path}.status")
    _check_schema(meta.input_schema, f"{path}.input_schema")
    _check_schema(meta.output_schema, f"{path}.output_schema")


def check_group(group: ToolGroup) -> ToolGroup:
    """Check a group; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    if GROUP_ID.match(group.group_id) is None:
        raise wrong(group.group_id, "1 to 64 letters, digits, '_', '.' and '-', and not '.' or '..'", "$.group_id")
    _check_texts(group, "$")
    for index, tool in enumerate(group.tool_ids):
        if TOOL_NAME.match(tool) is None:
            raise wrong(tool, "the name of a tool: 1 to 128 characters without spaces, slashes or braces", f"$.tool_ids[{index}]")
    for index, tool in enumerate(group.usage_order):
        if tool not in group.tool_ids:
            raise DescriptorError(f"{tool!r} is not among tool_ids", path=f"$.usage_order[{index}]")
    return group


def check_runtime(runtime: BackendRuntime) -> BackendRuntime:
    """Check a backend runtime; return it unchanged.

    Raises:
        DescriptorError: a field is wrong; ``path`` names it.
    """
    check_id(runtime.backend_runtime, "$.backend_runtime")
    _check_texts(runtime, "$")
    return runtime


def _check_texts(record: ToolMeta | ToolGroup | BackendRuntime, path: str) -> None:
    for name, most in _TEXTS.items():
        check_text(getattr(record, name, ""), f"{path}.{name}", most)


def _check_schema(schema: Mapping[str, Any], path: str) -> None:
    try:
        check_possible(schema)
    except DescriptorError as error:
        raise DescriptorError(str(error).rpartition(" - at `")[0] or str(error), path=path) from None
