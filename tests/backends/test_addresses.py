"""Addresses of APIs that look like names, but are numbers to the client: refused in every field that holds a URL."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
import pytest

from tests.backends.places import Place
from toolbus.bus.outbound import Guard
from toolbus.bus.values.results import DescriptorError, ToolError
from toolbus.platform.backends.api import ApiSender, Resolver
from toolbus.platform.backends.connections import Request
from toolbus.platform.backends.remote import RemoteRunner
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.checks import AUTH, check_source
from toolbus.platform.records import ToolSource

pytestmark = pytest.mark.anyio

_PRIVATE = [
    "127.0.0.1",
    "127.0.0.1.",
    "169.254.169.254",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[64:ff9b::7f00:1]",
    "[::127.0.0.1]",
]
_DISGUISED = [
    "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①", "１６９.254.169.254", "169。254。169。254",
    "2130706433", "2852039166", "0x7f.1", "0x7f000001", "0xa9fea9fe", "017700000001", "0177.0.0.1", "127.1", "0", "127.0.0.01",
    "%31%32%37.0.0.1", "127.0.0.1%2f.example.com", "127.0.0.1\\@8.8.8.8", "[fe80::1%25lo]", "ｌocalhost", "xn--bücher.example",
]  # fmt: skip
_FIELDS = [each.name for each in msgspec.structs.fields(ToolSource) if "url" in each.name]
_AUTH_FIELDS = [(kind, name) for kind, names in AUTH.items() for name in names if "url" in name]


def _source(field: str | tuple[str, str], url: str) -> ToolSource:
    fields: dict[str, Any] = {"url": "http://8.8.8.8:9"}
    if isinstance(field, str):
        fields[field] = url
    else:
        kind, name = field
        fields["auth"] = {"type": kind, **dict.fromkeys(AUTH[kind], "env:PATH"), name: url}
    return ToolSource(type="remote", **fields)


@pytest.mark.parametrize("host", [*_PRIVATE, *_DISGUISED])
async def test_no_form_of_a_private_address_is_called(host: str) -> None:
    """A private address is refused at the start of its tool, in each field and however it is written; one in disguise can't be recorded."""
    for field in [*_FIELDS, *_AUTH_FIELDS]:
        source = _source(field, f"http://{host}:31950/t")
        with pytest.raises(CannotStart):
            await Place(RemoteRunner(), source).start()
        if host in _DISGUISED:
            with pytest.raises(DescriptorError, match="url"):
                check_source(source, "$")


@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]"])
async def test_numbers_are_checked_when_connecting(host: str) -> None:
    """An address for which no resolver is asked is checked before it is connected to."""
    resolver = Resolver((), Guard())
    sender = ApiSender(f"http://{host}:9", resolver, resolver.check)
    with pytest.raises(ToolError) as raised:
        await sender.send(Request("GET", "/", None), {})
    assert raised.value.error.code == "forbidden_address"
    with pytest.raises(ToolError):
        await sender.session.post(f"http://{host}:9/t", timeout=aiohttp.ClientTimeout(total=10))
    await sender.aclose()


@pytest.mark.parametrize("host", ["example.com", "xn--bcher-kva.example", "8.8.8.8", "[2606:4700::1111]", "my_host.example.", "localhost"])
def test_plain_hosts_can_be_recorded(host: str) -> None:
    """Names and whole addresses are taken in every field."""
    for field in [*_FIELDS, *_AUTH_FIELDS]:
        check_source(_source(field, f"https://{host}/t"), "$")
