"""TrustGraph's names: services written for that project, its clients and its types, over every transport."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus.bus.values.events import Text
from toolbus.compat.trustgraph import (
    DynamicToolService,
    Error,
    Message,
    ToolServiceClient,
    ToolServiceImpl,
    ToolServiceRequest,
    ToolServiceResponse,
    ToolServiceTimeout,
    TooManyRequests,
)

pytestmark = pytest.mark.anyio

REQUEST, RESPONSE = "non-persistent://tg/request/joke", "non-persistent://tg/response/joke"


class Processor(DynamicToolService):
    """A service as its authors wrote it."""

    def __init__(self, **params: Any) -> None:
        super(Processor, self).__init__(**params)  # noqa: UP008 - as that project writes it
        self.greeting = "Hey"

    async def invoke(self, user, config, arguments):
        style = config.get("style", "pun")
        return f"{self.greeting} {user}! Here's a {style} for you:\n\n{arguments.get('topic', '')}"

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        DynamicToolService.add_args(parser)
        parser.add_argument("--extra", default="none")


class TwoArguments(DynamicToolService):
    async def invoke(self, config, arguments):  # type: ignore[override]
        return {"config": config, "arguments": arguments, "é": None}


class Failing(DynamicToolService):
    async def invoke(self, user, config, arguments):
        raise ValueError(f"no {arguments['what']}")


class Limited(DynamicToolService):
    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.calls = 0

    async def invoke(self, user, config, arguments):
        self.calls += 1
        if self.calls < 2:
            raise TooManyRequests
        return "at last"


class Pieces(DynamicToolService):
    """Sends its responses itself, many with one id."""

    async def on_request(self, msg, consumer, flow):
        call = msg.properties()["id"]
        for word in json.loads(msg.value().arguments)["words"]:
            await self.producer.send(ToolServiceResponse(response=word), properties={"id": call})
        if msg.value().user != "mute":
            await self.producer.send(ToolServiceResponse(response="!", end_of_stream=True), properties={"id": call})


class Generating(DynamicToolService):
    async def invoke(self, user, config, arguments):
        for word in arguments["words"]:
            yield word


class Hanging(DynamicToolService):
    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def invoke(self, user, config, arguments):
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def test_types_have_that_projects_names_and_defaults() -> None:
    """Requests, responses and errors are made and compared as their users do it."""
    assert ToolServiceRequest() == ToolServiceRequest(user="", config="", arguments="")
    assert ToolServiceResponse() == ToolServiceResponse(error=None, response="", end_of_stream=False)
    assert Error() == Error(type="", message="")
    message = Message(ToolServiceRequest("al", "{}", "{}"), {"id": "7"})
    assert (message.value().user, message.properties()) == ("al", {"id": "7"})


def test_a_topic_names_the_queues_and_may_come_from_the_command_line() -> None:
    """The queues follow the rule of that project, and -t/--topic is an option that subclasses add to."""
    made = Processor(id="joke-service", topic="joke", taskgroup=None)
    assert (made.id, made.request_queue, made.response_queue) == ("joke-service", REQUEST, RESPONSE)
    assert Processor().request_queue == "non-persistent://tg/request/tool"
    parser = argparse.ArgumentParser()
    Processor.add_args(parser)
    assert parser.parse_args(["-t", "joke"]).topic == parser.parse_args(["--topic", "joke"]).topic == "joke"
    assert parser.parse_args([]).topic == "tool"


def test_different_topics_are_different_services() -> None:
    """A topic with characters that no service id has gets an id of its own."""
    ids = {Processor(topic=topic).as_service().id for topic in ("a/b", "a-b", "a b", "a.b")}
    assert len(ids) == 4


async def test_operators_descriptors_lead_to_the_service(place: Place) -> None:
    """The two descriptors of that project, put before or after the start, make tools of a service that only knows its topic."""
    service = {"id": "joke-service", "request-queue": REQUEST, "response-queue": RESPONSE, "config-params": [{"name": "style"}]}
    tool = {
        "type": "tool-service",
        "name": "tell-joke",
        "description": "Tell a joke on a given topic",
        "service": "joke-service",
        "style": "limerick",
        "arguments": [{"name": "topic", "type": "string", "description": "The topic for the joke"}],
    }
    async with place.serving(Processor(topic="joke").as_service()) as bus:
        await bus.put("tool-service/joke-service", msgspec.json.encode(service))
        await bus.put("tool/tell-joke", msgspec.json.encode(tool))
        await bus.wait_for_tool("tell-joke")
        result = await bus.call("tell-joke", {"topic": "cats"}, user="alice")
        assert result.output == "Hey alice! Here's a limerick for you:\n\ncats"


async def test_the_client_returns_observations(place: Place) -> None:
    """call(user, config, arguments) gives the text; without a user it is that project's default one."""
    async with place.serving(Processor(topic="joke").as_service()) as bus:
        client = ToolServiceClient(request_topic=REQUEST, response_topic=RESPONSE, bus=bus)
        assert await client.call("al", {"style": "pun"}, {"topic": "tea"}) == "Hey al! Here's a pun for you:\n\ntea"
        assert await client.call("", None, None) == "Hey trustgraph! Here's a pun for you:\n\n"


async def test_both_arities_and_values_that_are_no_strings(place: Place) -> None:
    """invoke(config, arguments) is accepted, and what it returns is told as JSON."""
    async with place.serving(TwoArguments(topic="joke").as_service()) as bus:
        told = await ToolServiceClient(REQUEST, bus=bus).call("al", {"a": 1}, {"b": [2]})
        assert told == json.dumps({"config": {"a": 1}, "arguments": {"b": [2]}, "é": None})


async def test_a_failure_is_a_runtime_error_with_its_message(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The client raises RuntimeError(message); the error's type is that project's, and the traceback is in the log."""
    async with place.serving(Failing(topic="joke").as_service()) as bus:
        client = ToolServiceClient(REQUEST, bus=bus)
        with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match=r"\Ano luck\Z"):
            await client.call("al", {}, {"what": "luck"})
        assert "Traceback" in caplog.text
        response = await client.request(ToolServiceRequest("al", "", '{"what": "tea"}'))
        assert response == ToolServiceResponse(Error("tool-service-error", "no tea"), "", end_of_stream=True)
        with pytest.raises(RuntimeError, match="no tea"):
            await client.call_streaming("al", {}, {"what": "tea"}, callback=_ignore)


async def test_too_many_requests_is_tried_again(place: Place) -> None:
    """A call whose own supplier limits it is answered by a later attempt."""
    service = Limited(topic="joke")
    async with place.serving(service.as_service()) as bus:
        assert await ToolServiceClient(REQUEST, bus=bus).call("al", {}, {}) == "at last"
    assert service.calls == 2


@pytest.mark.parametrize("kind", [Pieces, Generating])
async def test_many_responses_are_one_stream(place: Place, kind: type[DynamicToolService]) -> None:
    """Responses with one id arrive piece by piece; the last has end_of_stream, and collecting drains them all."""
    words = ["one ", "two ", "three"]
    end = "!" if kind is Pieces else ""
    async with place.serving(kind(topic="joke").as_service()) as bus:
        client = ToolServiceClient(REQUEST, bus=bus)
        heard: list[str] = []

        async def hear(text: str) -> None:
            heard.append(text)

        assert await client.call_streaming("al", {}, {"words": words}, callback=hear) == "one two three" + end
        assert "".join(heard) == "one two three" + end
        assert await client.call("al", {}, {"words": words}) == "one two three" + end
        many = ["x"] * 1000
        async with bus.service(REQUEST).stream("al", {}, {"words": many}) as call:
            assert sum(len(event.text) for event in [e async for e in call.events()] if isinstance(event, Text)) == 1000 + len(end)


async def test_a_service_that_forgets_to_answer_is_an_error(place: Place) -> None:
    """A request handler that returns without end_of_stream ends the call with an error, not with silence."""
    async with place.serving(Pieces(topic="joke").as_service()) as bus:
        with pytest.raises(RuntimeError, match="without an answer"):
            await ToolServiceClient(REQUEST, bus=bus).call("mute", {}, {"words": ["a"] * 40})


async def test_a_late_service_is_waited_for_and_a_slow_one_given_up(place: Place) -> None:
    """A call made before its service starts is answered by it; one that takes too long is a TimeoutError, and its handler is cancelled."""
    service = Hanging(topic="slow")
    async with place.bus() as bus:
        client = ToolServiceClient(REQUEST, bus=bus)
        early = asyncio.ensure_future(client.call("al", {}, {"topic": "x"}))
        await eventually(lambda: bus.statistics()["in_flight"] == 0)
        async with place.worker(Processor(topic="joke").as_service()):
            assert (await early).endswith("x")
        async with place.worker(service.as_service()):
            with pytest.raises(TimeoutError) as caught:
                await ToolServiceClient(service.request_queue, bus=bus).call("al", {}, {}, timeout=1.0)
            assert isinstance(caught.value, ToolServiceTimeout)
            assert isinstance(caught.value, RuntimeError)
            assert service.began.is_set()
            await asyncio.wait_for(service.ended.wait(), 5)


async def test_a_tool_makes_one_client_on_concurrent_first_use(place: Place) -> None:
    """Tools of one queue share the processor's client, the user comes from the context, and arguments are shown as given."""
    async with place.serving(Processor(topic="joke").as_service()) as bus:
        processor = SimpleNamespace(tool_service_clients={}, bus=bus)
        context = SimpleNamespace(_user="alice")
        tools = [ToolServiceImpl(context, REQUEST, RESPONSE, {"style": style}, ["a"], processor) for style in ("pun", "haiku")]
        told = await asyncio.gather(*(tool.invoke(topic=str(n)) for n in range(5) for tool in tools))
        assert told[0] == "Hey alice! Here's a pun for you:\n\n0"
        assert told[-1] == "Hey alice! Here's a haiku for you:\n\n4"
        assert list(processor.tool_service_clients) == [REQUEST]
        assert tools[0].get_arguments() == ["a"]
        await tools[0].aclose()
        nobody = ToolServiceImpl(object(), REQUEST, RESPONSE, processor=processor)
        assert (await nobody.invoke()).startswith("Hey trustgraph!")


async def test_a_client_of_its_own_opens_and_closes_its_bus(place: Place) -> None:
    """Without a bus the client connects at its first call, once for calls at the same time, and stop() closes cleanly."""
    async with place.worker(Processor(topic="joke").as_service()):
        client = ToolServiceClient(REQUEST, settings=place.settings)
        assert len(set(await asyncio.gather(*(client.call("al", {}, {"topic": "x"}) for _ in range(8))))) == 1
        await client.stop()
        await client.stop()


async def test_on_request_answers_through_the_producer() -> None:
    """A service can be tested as that project's authors do: a message in, a response with the same id out."""
    sent: list[tuple[ToolServiceResponse, dict[str, str]]] = []

    class Recorder:
        async def send(self, response: ToolServiceResponse, properties: dict[str, str]) -> None:
            sent.append((response, properties))

    service = Processor(id="t", topic="t")
    service.producer = Recorder()  # type: ignore[assignment]
    await service.on_request(Message(ToolServiceRequest("al", "", '{"topic": "x"}'), {"id": "42"}), None, None)
    await service.on_request(Message(ToolServiceRequest("al", "{", ""), {"id": "43"}), None, None)
    assert sent[0] == (ToolServiceResponse(None, "Hey al! Here's a pun for you:\n\nx", end_of_stream=True), {"id": "42"})
    assert sent[1][0].error is not None
    assert sent[1][1] == {"id": "43"}
    await service.on_request(Message(ToolServiceRequest("al", "", '{"topic": "x", "topic": "y"}'), {"id": "44"}), None, None)
    assert sent[2][0].error is not None
    assert '"topic" stands twice' in sent[2][0].error.message


async def _ignore(text: str) -> None:
    pass
