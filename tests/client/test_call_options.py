"""The options of calls: each is checked where it is said, by every function that takes it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.contract import Place
from toolbus import ConfigurationError, ToolBus, invocation, sync, tool
from toolbus.bus.values.options import CallOptions, ServiceCallOptions

pytestmark = pytest.mark.anyio

NAN, INFINITE = float("nan"), float("inf")

# A right value of each option, what a message about a wrong one says, and wrong values.
OPTIONS: dict[str, tuple[Any, str, list[Any]]] = {
    "user": ("alice", "user must be a text", [3, b"alice", ["alice"], True]),
    "session": ("s", "session must be a text", [5, b"s", ("a", "b")]),
    "timeout": (5, "timeout must be a finite number of seconds above 0", ["5", 0, -1, NAN, INFINITE, True]),
    "idle_timeout": (5.0, "idle_timeout must be a finite number of seconds above 0", ["5", 0, -1, NAN, [1]]),
    "wait": (0.01, "wait must be a finite number of seconds above 0", ["5", -1, NAN, INFINITE, "True", []]),
    "idempotency_key": ("k", "idempotency_key must be a text", [5, b"k", 1.5]),
    "resume_from": (0, "resume_from must be a number of characters", ["0", -1, 1.5, True]),
    "initial": ({"has": [1]}, "initial must be a ", [[1], "x", {"a": object()}, {"a": NAN}, {"a": "x" * 70_000}]),
    "metadata": ({"trace": "1"}, "metadata must be a mapping from texts to texts", [{"x": 1}, {1: "x"}, "x", [("a", "b")], {"x": None}]),
}
WRONG = [(name, value) for name, (_, _, values) in OPTIONS.items() for value in values]


@tool(service="optional", effect="read")
async def context() -> dict[str, Any]:
    """Give back what the call said of itself."""
    running = invocation()
    return {"user": running.user, "session": running.session, "metadata": dict(running.metadata)}


@tool(service="optional", effect="read")
async def nested(name: str) -> str:
    """Make a nested call with a wrong option."""
    try:
        await invocation().call("context", **{name: OPTIONS[name][2][0]})  # type: ignore[arg-type]
    except ConfigurationError as error:
        return str(error)
    return "accepted"


async def streamed(bus: ToolBus, options: dict[str, Any]) -> None:
    """Make a streamed call."""
    async with bus.stream("context", **options) as call:
        await call.result()


async def in_session(bus: ToolBus, options: dict[str, Any]) -> None:
    """Bind options beside a session, or the session itself."""
    async with bus.session(**{"id": "s", **{("id" if name == "session" else name): value for name, value in options.items()}}):
        pass


WAYS: dict[str, Callable[[ToolBus, dict[str, Any]], Awaitable[object]]] = {
    "call": lambda bus, options: bus.call("context", **options),
    "call of a missing tool": lambda bus, options: bus.call("nothing", **options),
    "stream": streamed,
    "bind": lambda bus, options: bus.bind(**options).call("context"),
    "view": lambda bus, options: bus.bind().call("context", **options),
    "session": in_session,
    "executor": lambda bus, options: bus.executor(**options).execute("context"),
    "model": lambda bus, options: bus.process_tool_calls([], **options),
}


def test_every_option_is_listed_here() -> None:
    """A new option needs a right value and wrong ones here, so that its check is not forgotten."""
    assert OPTIONS.keys() == CallOptions.__optional_keys__ == ServiceCallOptions.__optional_keys__ | {"user"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_wrong_value_is_refused_where_it_is_said(place: Place, way: str) -> None:
    """Each wrong value of each option is a ConfigurationError that names the option, and nothing is published."""
    async with place.serving(context) as bus:
        await bus.wait_for_tool("context")
        for name, value in WRONG:
            with pytest.raises(ConfigurationError) as refused:
                await WAYS[way](bus, {name: value})
            assert str(refused.value).startswith(OPTIONS[name][1]), (name, value)
            assert bus.statistics()["in_flight"] == 0
        for name, (value, _, _) in OPTIONS.items():
            await WAYS[way](bus, {name: value})


async def test_an_untyped_call_is_checked_alike(place: Place) -> None:
    """A call of a service refuses the same values, and a config that is no mapping."""
    async with place.bus() as bus:
        for name, value in WRONG:
            options = {"user": "u", "config": {}, "arguments": {}, name: value}
            with pytest.raises(ConfigurationError, match=OPTIONS[name][1]):
                await bus.service("optional").call(**options)
        with pytest.raises(ConfigurationError, match="config must be a mapping, not 3"):
            bus.service("optional").stream("u", 3, {})  # type: ignore[arg-type]


async def test_a_handlers_call_is_checked_alike(place: Place) -> None:
    """A handler's own calls refuse the same values."""
    async with place.serving([context, nested]) as bus:
        await bus.wait_for_tool("nested")
        for name, (_, says, _) in OPTIONS.items():
            answer = await bus.call("nested", {"name": name})
            assert answer.output is not None
            assert answer.output.startswith(says)


async def test_none_is_no_value(place: Place) -> None:
    """None stands for no value, also in place of a default; no user sees what is for no tenant in particular."""
    async with place.serving(context) as bus:
        await bus.wait_for_tool("context")
        nothing: dict[str, Any] = dict.fromkeys(OPTIONS)
        empty = {"user": "", "session": "", "metadata": {}}
        bound = bus.bind(user="alice", session="s", metadata={"a": "b"})
        assert (await bound.call("context")).data == {"user": "alice", "session": "s", "metadata": {"a": "b"}}
        assert (await bus.call("context", **nothing)).data == empty
        assert (await bound.call("context", **nothing)).data == empty
        assert (await bound.bind(**nothing).executor().execute("context")).data == empty


async def test_a_subclass_of_text_is_a_text(place: Place) -> None:
    """An option may be of a subclass of ``str``, as a member of an enumeration is."""

    class Name(str):  # noqa: SLOT000 - as users write it
        """A name."""

    async with place.serving(context) as bus:
        await bus.wait_for_tool("context")
        found = await bus.call("context", user=Name("alice"), session=Name("s"), metadata={Name("a"): Name("b")})
        assert found.data == {"user": "alice", "session": "s", "metadata": {"a": "b"}}


@pytest.mark.parametrize("id", ["", None, 5])
async def test_a_session_needs_an_id(place: Place, id: Any) -> None:
    """A session without an id is refused before anything runs in it."""
    async with place.bus() as bus:
        with pytest.raises(ConfigurationError, match="session"):
            async with bus.session(id):
                pytest.fail("it was entered")
    with sync.ToolBus("memory://") as synchronous, pytest.raises(ConfigurationError, match="session"), synchronous.session(id):
        pytest.fail("it was entered")


@pytest.mark.parametrize("options", [{"bogus": 1}, {"initial": 5}, {"user": 5}])
async def test_wrong_options_of_a_session_are_refused_at_once(options: dict[str, Any]) -> None:
    """The mistake is told where it is made, and not where the session is entered, on both buses and their views."""
    async with ToolBus("memory://") as bus:
        for place in (bus, bus.bind(user="ann")):
            with pytest.raises(ConfigurationError):
                place.session("s", **options)
    with sync.ToolBus("memory://") as synchronous:
        for each in (synchronous, synchronous.bind(user="ann")):
            with pytest.raises(ConfigurationError):
                each.session("s", **options)


async def test_a_misspelt_option_is_told_with_its_name() -> None:
    """A wrong name is told with the one that looks like it, and with all there are."""
    async with ToolBus("memory://") as bus:
        with pytest.raises(
            ConfigurationError, match=r"there is no call option 'usr'; did you mean 'user'\? \(there are: idempotency_key, "
        ):
            await bus.call("context", usr="alice")  # type: ignore[call-arg]


def test_options_are_documented() -> None:
    """Each option is described where they are defined."""
    described = inspect.cleandoc(ServiceCallOptions.__doc__ or "") + inspect.cleandoc(CallOptions.__doc__ or "")
    for name in OPTIONS:
        assert f"\n    {name}: " in described
