"""Tools that need a person's permission wait for it at every entrance."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.client.executing import pay, repeat
from tests.contract import Place, first_of, withdrawn
from tests.gateway.running import client_of, events_of
from toolbus import invocation, tool

pytestmark = pytest.mark.anyio

ran: list[str] = []


@tool(service="talks", effect="once", confirm=True)
async def chat(message: str, chat_id: str) -> str:
    """Answer a message."""
    ran.append(invocation().session)
    return f"{message} in {chat_id}"


ENTRANCES: list[tuple[str, dict[str, Any], str]] = [
    ("/run_tool", {"tool_id": "pay", "params": {"amount": 5}}, "paid 5"),
    ("/v1/tools/pay/invoke", {"amount": 5}, "paid 5"),
    ("/chat", {"message": "hello", "chat_id": "c"}, "hello in c"),
]
EVENTS = {"Accept": "text/event-stream"}


def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> asyncio.Task[httpx.Response]:
    """Send a request."""
    return asyncio.create_task(client.post(path, json=body, headers=headers))


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["result", "events"])
@pytest.mark.parametrize(("path", "body", "said"), ENTRANCES, ids=lambda value: str(value)[:12])
async def test_a_person_allows_or_denies(place: Place, path: str, body: dict[str, Any], said: str, headers: dict[str, str]) -> None:
    """Another process is asked with the arguments; allowed, the call runs, and denied, it is forbidden and runs nothing."""
    ran.clear()
    async with place.serving(pay, chat) as bus, place.bus() as person, client_of(bus) as client:
        asking = ask(client, path, body, **headers)
        request = await first_of(person)
        assert request.arguments
        assert not ran
        await person.confirmations.allow(request.id)
        answer = await asking
        assert (answer.status_code, said in answer.text) == (200, True)
        before = len(ran)
        asking = ask(client, path, body, **headers)
        await person.confirmations.deny((await first_of(person)).id, "not on a Friday")
        answer = await asking
        assert "not on a Friday" in answer.text
        if headers:
            events = [(name, json.loads(data)) for name, data in events_of(answer.text)]
            assert [name for name, _ in events] == ["confirm", "answered", "end"]
            assert (events[1][1]["allowed"], events[2][1]["error"]["type"]) == (False, "forbidden")
        else:
            assert (answer.status_code, answer.json()["type"]) == (403, "urn:toolbus:error:forbidden")
        assert len(ran) == before


@pytest.mark.parametrize("headers", [{}, EVENTS], ids=["result", "events"])
async def test_the_question_goes_with_the_client(place: Place, headers: dict[str, str]) -> None:
    """When the client leaves, nobody is asked any more."""
    async with place.serving(pay) as bus, place.bus() as person, client_of(bus) as client:
        asking = ask(client, *ENTRANCES[0][:2], **headers)
        request = await first_of(person)
        asking.cancel()
        await asyncio.wait({asking})
        await withdrawn(person, request)


async def test_the_deadline_of_the_call_holds(place: Place) -> None:
    """A call that nobody allows within its time ends as one that took too long."""
    async with place.serving(pay) as bus, client_of(bus) as client:
        answer = await ask(client, *ENTRANCES[0][:2], **{"Toolbus-Timeout": "0.3"})
        assert (answer.status_code, answer.json()["code"]) == (504, "unconfirmed")


async def test_nobody_is_asked_in_vain(place: Place) -> None:
    """Wrong arguments are refused before a person is asked, and tools without the need are not asked about."""
    async with place.serving(pay, repeat) as bus, place.bus() as person, client_of(bus) as client:
        wrong = await ask(client, "/v1/tools/pay/invoke", {"amount": "much"})
        assert (wrong.status_code, wrong.json()["type"]) == (422, "urn:toolbus:error:invalid_arguments")
        assert (await ask(client, "/v1/tools/repeat/invoke", {"text": "a"})).json()["output"] == "a"
        assert await person.confirmations.pending() == []
