"""Dead letters from the command line: requests set aside for real, listed, redriven and dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.cli.shell import Shell
from tests.contract import Place
from tests.servers import elapse, eventually
from toolbus import Retry, ToolService, invocation
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.results import BrokerError, ConfigurationError

pytestmark = pytest.mark.anyio


class Frail(ToolService):
    """Fails while it is told to."""

    id = "frail"
    effect = "idempotent"
    retry = Retry(attempts=1)
    config_params = ("size",)
    tools = ({"name": "lift", "description": "Lift.", "size": 3, "arguments": []},)

    def __init__(self) -> None:
        self.broken = True
        self.seen: list[tuple[Any, ...]] = []

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        self.seen.append((user, config, arguments, invocation().idempotency_key, invocation().id))
        if self.broken:
            raise RuntimeError("too heavy")
        return "lifted"


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """Return a namespace on Valkey."""
    return Place(server, namespace)


@pytest.fixture
def client(place: Place) -> Iterator[redis.Redis]:
    """Return a client of its server, for keys that nothing else removes."""
    with redis.Redis.from_url(place.settings.url) as client:
        yield client
        client.delete(*client.scan_iter(f"{keys_of(place)}*"))


def keys_of(place: Place) -> str:
    """Return the key prefix of the namespace."""
    return f"tb:{{{place.settings.namespace}}}:"


async def told(shell: Shell, *words: str, given: str | None = None) -> Any:
    """Return the result of a command that runs while this loop's worker keeps working."""
    return await asyncio.to_thread(shell.run, *words, given=given)


async def test_a_dead_letter_is_listed_shown_and_runs_again(place: Place, shell: Shell) -> None:
    """A request that failed for good is there with its history, and runs again as a new call that keeps its identity."""
    service = Frail()
    async with place.worker(service), place.bus() as bus:
        await bus.wait_for_tool("lift")
        failed = await bus.call("lift", {"kg": 200, "secret": "hush"}, user="alice")
        assert failed.error is not None
        listed = await told(shell, "operate", "dead", "list", "--output", "json")
        assert listed.returncode == 0, listed.stderr
        [letter] = json.loads(listed.stdout)
        assert {key: letter[key] for key in ("service", "tool", "user", "attempts", "reason")} == {
            "service": "frail", "tool": "lift", "user": "alice", "attempts": 1, "reason": "retries_exhausted",
        }  # fmt: skip
        assert "too heavy" in letter["error"]
        table = await told(shell, "operate", "dead", "list", "frail")
        assert letter["id"] in table.stdout
        assert "hush" not in table.stdout + listed.stdout
        shown = json.loads((await told(shell, "operate", "dead", "show", "frail", letter["id"])).stdout)
        assert shown["request"]["arguments"] == {"kg": 200, "secret": "hush"}

        service.broken = False
        done = await told(shell, "operate", "dead", "redrive", "frail", letter["id"])
        assert done.returncode == 0, done.stderr
        await eventually(lambda: len(service.seen) == 2)
        assert service.seen[1][:4] == ("alice", {"size": 3}, {"kg": 200, "secret": "hush"}, failed.meta.id)
        assert service.seen[1][4] != failed.meta.id
        assert (await told(shell, "operate", "dead", "list")).stdout == ""
        client = redis.Redis.from_url(place.settings.url)
        await eventually(lambda: client.xlen(f"{keys_of(place)}q:frail") == 0)
        client.close()


async def test_what_fails_again_is_a_dead_letter_again(place: Place, shell: Shell) -> None:
    """A redriven request has no caller, so its failure goes back where the operator finds it."""
    service = Frail()
    async with place.worker(service), place.bus() as bus:
        await bus.wait_for_tool("lift")
        await bus.call("lift")
        assert (await told(shell, "operate", "dead", "redrive", "frail", "--all", "--yes")).returncode == 0
        await eventually(lambda: len(service.seen) == 2)

        async def back() -> Any:
            async with Admin(place.settings) as admin:
                return await admin.dead_letters.newest("frail", 10)

        [letter] = await eventually(back)
        assert letter.request is not None
        assert letter.request.agent == ""
        assert (await told(shell, "operate", "dead", "drop", "frail", letter.id)).returncode == 0
        assert await back() == []


async def test_a_letter_that_cannot_be_read_is_shown_and_dropped_but_not_run(place: Place, shell: Shell) -> None:
    """Garbage from the queue can be looked at safely; redriving it names the reason."""
    async with place.worker(Frail()), place.bus() as bus:
        await bus.wait_for_tool("lift")
        client = redis.Redis.from_url(place.settings.url)
        client.xadd(f"{keys_of(place)}q:frail", {"r": b"\xff{not json", "d": "99999999999999"})
        [(entry, _)] = await eventually(lambda: client.xrange(f"{keys_of(place)}dlq:frail"))
        client.close()
        letter = entry.decode()
        shown = json.loads((await told(shell, "operate", "dead", "show", "frail", letter)).stdout)
        assert (shown["reason"], shown["request"]) == ("malformed", "\\xff{not json")
        redriven = await told(shell, "operate", "dead", "redrive", "frail", letter)
        assert (redriven.returncode, redriven.stdout) == (1, "")
        assert "can't be read" in redriven.stderr
        assert (await told(shell, "operate", "dead", "drop", "frail", "--all", given="n\n")).returncode == 1
        assert (await told(shell, "operate", "dead", "drop", "frail", "--all", given="y\n")).returncode == 0
        nothing = f"no dead letters (namespace {shell.environment['TOOLBUS_NAMESPACE']!r})"
        assert nothing in (await told(shell, "operate", "dead", "list", "frail")).stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("show", "frail", "1-1"), "there is no dead letter 1-1"),
        (("show", "frail", "nonsense"), "no id of a dead letter"),
        (("redrive", "frail", "1-1"), "there is no dead letter 1-1"),
        (("drop", "frail", "1-1"), "there is no dead letter 1-1"),
        (("redrive", "frail"), "give the ids"),
        (("drop", "frail", "1-1", "--all"), "give the ids"),
    ],
)
def test_mistakes_are_one_line(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    """Wrong ids and missing words say what is wrong, without a traceback."""
    done = shell.run("operate", "dead", *words)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


async def test_two_operators_redrive_a_letter_once(place: Place) -> None:
    """Of many at the same time one publishes it, and the others hear that it is gone."""
    service = Frail()
    async with place.worker(service), place.bus() as bus, Admin(place.settings) as one, Admin(place.settings) as other:
        await bus.wait_for_tool("lift")
        await bus.call("lift")
        service.broken = False
        [letter] = await eventually(lambda: one.dead_letters.ids("frail"))
        tries = (admin.dead_letters.redrive("frail", letter, limit=100) for admin in (one, other) * 5)
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(outcome, str) for outcome in outcomes) == 1
        assert all(isinstance(outcome, (str, ConfigurationError)) for outcome in outcomes)
        await eventually(lambda: len(service.seen) == 2)


async def test_a_redriven_call_that_nobody_takes_in_time_is_a_letter_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """It has no caller who would learn that it did not run."""
    caplog.set_level("INFO")
    service = Frail()
    async with place.worker(service), place.bus() as bus, Admin(place.settings) as admin:
        await bus.wait_for_tool("lift")
        await bus.call("lift")
        [letter] = await eventually(lambda: admin.dead_letters.ids("frail"))
        await admin.pause("frail")
        await eventually(lambda: "service.paused" in caplog.text)
        call = await admin.dead_letters.redrive("frail", letter, limit=10, timeout=0.05)
        # A worker knows the server's clock to within a round trip.
        await elapse(0.5)
        await admin.resume("frail")
        [again] = await eventually(lambda: admin.dead_letters.newest("frail", 10))
        assert again.request is not None
        assert (again.request.id, again.reason) == (call, "failed")
        assert "the deadline passed" in again.error


async def test_a_full_or_missing_queue_leaves_the_letter(place: Place) -> None:
    """A dead letter that can't be published now stays where it is."""
    service = Frail()
    async with Admin(place.settings) as admin:
        async with place.worker(service), place.bus() as bus:
            await bus.wait_for_tool("lift")
            await bus.call("lift")
            [letter] = await eventually(lambda: admin.dead_letters.ids("frail"))
            await admin.pause("frail")
            with pytest.raises(BrokerError, match="stays where it is"):
                await admin.dead_letters.redrive("frail", letter, limit=0)
            await admin.resume("frail")
        with pytest.raises(ConfigurationError, match="nobody serves"):
            await admin.dead_letters.redrive("frail", letter, limit=10)
        assert await admin.dead_letters.ids("frail") == [letter]
        assert await admin.dead_letters.queues() == ["frail"]


async def test_a_key_of_a_wrong_type_hides_no_other_letters(place: Place, shell: Shell, client: redis.Redis) -> None:
    """The list names the key and shows the letters of the other queues; a command about that queue alone fails and names it, too."""
    wrong = f"{keys_of(place)}dlq:astray"
    client.xadd(f"{keys_of(place)}dlq:before", {"reason": "failed", "attempts": "1", "error": "first", "r": "{"})
    client.xadd(f"{keys_of(place)}dlq:zebra", {"reason": "failed", "attempts": "1", "error": "last", "r": "{"})
    client.set(wrong, "junk")
    listed = await told(shell, "operate", "dead", "list", "--output", "json")
    assert (listed.returncode, [each["service"] for each in json.loads(listed.stdout)]) == (0, ["before", "zebra"])
    assert wrong in listed.stderr
    for words in (("list", "astray"), ("show", "astray", "1-1"), ("drop", "astray", "--all", "--yes"), ("redrive", "astray", "1-1")):
        done = await told(shell, "operate", "dead", *words)
        assert (done.returncode, wrong in done.stderr) == (1, True)


@pytest.mark.parametrize("kind", ["fence:frail", "dlq:frail", "q:frail", "reg:s:frail", "live", "reg:paused"])
async def test_services_are_listed_whatever_key_is_of_a_wrong_type(place: Place, shell: Shell, client: redis.Redis, kind: str) -> None:
    """A key of a wrong type of one service, or of all, hides no service from the list."""
    keys = keys_of(place)
    for service in ("frail", "sound"):
        document = json.dumps({"service": {"id": service}, "tools": []})
        client.hset(f"{keys}reg:services", service, f"+{document}")
        client.hset(f"{keys}reg:s:{service}", "i:one", "1:d")
        client.zadd(f"{keys}live", {f"{service}/one": 99_999_999_999_999})
    client.delete(keys + kind)
    client.set(keys + kind, "junk")
    listed = await told(shell, "see", "services", "--output", "json")
    assert (listed.returncode, [each["id"] for each in json.loads(listed.stdout)]) == (0, ["frail", "sound"])
    assert json.loads(listed.stdout)[1]["workers"] == (0 if kind == "live" else 1)


async def test_an_operator_is_told_which_key_is_of_a_wrong_type(place: Place, shell: Shell, client: redis.Redis) -> None:
    """Commands that can't do without a key name it, whether a command or a script met it."""
    keys = keys_of(place)
    document = json.dumps({"service": {"id": "frail"}, "tools": []})
    client.hset(f"{keys}reg:services", "frail", f"+{document}")
    client.set(f"{keys}q:frail", "junk")
    client.set(f"{keys}reg:paused", "junk")
    for words, key in (
        (("operate", "purge", "frail", "--yes"), "q:frail"),
        (("operate", "pause", "frail"), "reg:paused"),
        (("operate", "resume", "frail"), "reg:paused"),
    ):
        done = await told(shell, *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert keys + key in done.stderr
