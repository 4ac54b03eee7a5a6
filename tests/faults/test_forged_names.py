"""Names that are held by records which no registration wrote."""

from __future__ import annotations

import pytest
import redis

from tests.contract import Place
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import RegistrationRefused

pytestmark = pytest.mark.anyio

DOCUMENT = b'{"name": "x", "description": "Be there.", "service": "pool"}'


@pytest.mark.parametrize("key", ["tool/x", "tool-service/x", "toolkit/x"])
@pytest.mark.parametrize("record", [b"evil\nnosuch\n0", b"evil\nnosuch\n" + b"9" * 400, b"\xff\n\xff\n0", b"\n\n0", b"junk", b""])
async def test_an_operator_can_put_a_document_in_the_end(place: Place, key: str, record: bytes) -> None:
    """At once, or after `rm --force`, which the refusal names with the record."""
    keys = Keys(place.settings.namespace)
    kind, _, name = key.partition("/")
    field = {"tool": "t", "tool-service": "s", "toolkit": "k"}[kind] + f":{name}"
    client = redis.Redis.from_url(place.settings.url)
    client.hset(keys.names, field, record)
    owner = "me" if kind == "toolkit" else ""
    async with Admin(place.settings) as admin:
        refused = ""
        try:
            await admin.put(key, DOCUMENT, owner)
        except RegistrationRefused as error:
            refused = str(error)
        if refused:
            assert f"`toolbus operate items rm {'' if owner else '--force '}{key}`" in refused
            assert f"{field!r} of {keys.names}" in refused
            assert await admin.delete(key) or await admin.transfer(key)
            await admin.put(key, DOCUMENT, owner)
        assert await admin.item(key) == DOCUMENT
        assert await admin.delete(key)
    client.close()


async def test_a_name_held_for_a_service_that_never_was_is_free(place: Place) -> None:
    """Nobody would ever give it up."""
    keys = Keys(place.settings.namespace)
    client = redis.Redis.from_url(place.settings.url)
    client.hset(keys.names, "t:x", b"evil\nnosuch\n0")
    async with Admin(place.settings) as admin:
        await admin.put("tool/x", DOCUMENT)
    client.close()
