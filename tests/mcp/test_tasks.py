"""Tasks: begun at one gateway, followed, answered and cancelled at another, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CallToolRequestParams

from tests.contract import Place
from tests.forking import ForkServer
from tests.mcp.conftest import listed
from tests.mcp.site import MODERN, TASKS, Raw, Site, text_of
from tests.servers import eventually
from toolbus import ToolBus, ToolError, Worker, tool
from toolbus.bus.broker.held.tasks import Tasks as TaskStore
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.client.confirmations import Grant
from toolbus.edges.gateway.options import Principal
from toolbus.edges.mcp.calls import ToolCalls
from toolbus.edges.mcp.client import SdkExchange

pytestmark = pytest.mark.anyio

FROM_START = {"_meta": {"toolbus/text": {"from": 0}}}
YES = {"action": "accept", "content": {"allow": True}}


async def status(raw: Raw, task: str, wanted: str, **more: Any) -> dict[str, Any]:
    """Wait until a task has a status; return what is known of it then."""
    found: dict[str, Any] = {}

    async def reached() -> bool:
        found.clear()
        found.update(await raw.ask("tasks/get", taskId=task, **more))
        return found.get("status") == wanted

    await eventually(reached, timeout=40)
    return found


def go_on(site: Site, name: str, *parts: int | str) -> None:
    """Let a job say its next parts."""
    for part in parts:
        (site.folder / f"{name}.{part}").touch()


@pytest.mark.usefixtures("slow")
async def test_a_task_has_what_the_extension_says(site: Site, raw: Raw) -> None:
    """A call becomes a task at once, which says what it does, then has the result that the call would have had."""
    made = await raw.call("job", name="plain", parts=2)
    assert made["resultType"] == "task"
    assert (made["status"], made["ttlMs"], made["pollIntervalMs"]) == ("working", 3_660_000, 1_000)
    go_on(site, "plain", 0)
    working = await status(raw, made["taskId"], "working", **FROM_START)
    await eventually(lambda: "1/2" in str(working) or status_has(raw, made["taskId"], "1/2", working), timeout=20)
    go_on(site, "plain", 1)
    done = await status(raw, made["taskId"], "completed", **FROM_START)
    assert text_of(done["result"]) == "part 0. part 1. "
    assert done["_meta"]["toolbus/text"] == {"from": 0, "text": "part 0. part 1. ", "attempt": 1}
    assert done["createdAt"] <= done["lastUpdatedAt"]
    broken = await raw.call("broken_job")
    failed = await status(raw, broken["taskId"], "completed")
    assert failed["result"]["isError"] is True


@pytest.fixture
async def quick(server: str, namespace: str) -> AsyncIterator[tuple[Worker, ToolBus, ToolCalls]]:
    """A worker of a tool that always makes tasks and fails at once, and what calls it."""

    @tool(service="quick", task="always")
    async def fails() -> str:
        """Fail."""
        raise ToolError("at once")

    place = Place(server, namespace)
    async with place.worker(fails) as worker, place.bus() as bus:
        await bus.wait_for_tool("fails")
        yield worker, bus, ToolCalls(bus, lambda _: Principal("test"))


def context() -> Any:
    """Return the context of a request of a client that has tasks."""
    return SimpleNamespace(protocol_version=MODERN, meta={CLIENT_CAPABILITIES_META_KEY: {"extensions": {TASKS: {}}}}, params={})


async def test_a_call_that_ends_while_its_task_is_kept_is_a_task(
    quick: tuple[Worker, ToolBus, ToolCalls], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that always makes tasks makes one, whichever of the two is faster."""
    _, bus, calls = quick
    put = TaskStore.put

    async def slowly(store: TaskStore, *record: Any) -> None:
        await eventually(lambda: bus.statistics()["in_flight"] == 0)
        await put(store, *record)

    monkeypatch.setattr(TaskStore, "put", slowly)
    made = await calls.call(context(), CallToolRequestParams(name="fails"))
    assert (made["resultType"], made["status"]) == ("task", "working")
    task = await bus.tasks.find(made["taskId"], "")
    assert task is not None
    state = await bus.tasks.state(task)
    assert state is not None
    assert str(state.result and state.result.error) == "tool_error: at once"


@pytest.mark.usefixtures("slow")
async def test_a_call_that_could_not_be_published_is_no_task(quick: tuple[Worker, ToolBus, ToolCalls]) -> None:
    """Nobody could find it, so that the client gets the reason at once."""
    worker, bus, calls = quick
    found = bus.tools["fails"]
    await worker.aclose()
    await eventually(lambda: "fails" not in bus.tools)
    made = await calls._durable(SdkExchange(context()), Principal("test"), found, {}, Grant(found), 0.0)
    assert (made["isError"], "taskId" in made) == (True, False)


async def status_has(raw: Raw, task: str, part: str, into: dict[str, Any]) -> bool:
    """Return whether the task's message has a part."""
    into.update(await raw.ask("tasks/get", taskId=task))
    return part in into.get("statusMessage", "")


@pytest.mark.usefixtures("slow")
async def test_only_clients_that_have_tasks_get_them(url: str, raw: Raw) -> None:
    """Another client waits for the result, and is told which capability the methods of tasks need."""
    async with Raw(url, tasks=False) as plain:
        assert text_of(await plain.call("soon")) == "done"
        assert (await plain.call("broken_job"))["isError"] is True
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            assert (await plain.ask(method, taskId="x"))["code"] == -32021
        refused = await plain.ask("subscriptions/listen", notifications={"taskIds": ["x"]})
        assert refused["data"] == {"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
    assert (await raw.ask("tasks/list"))["code"] == -32601


@pytest.mark.usefixtures("slow")
async def test_a_call_becomes_a_task_when_it_takes_long(site: Site, raw: Raw) -> None:
    """A short call of such a tool has its result, and a long one is a task."""
    assert text_of(await raw.call("soon")) == "done"
    made = await raw.call("lengthy", name="late")
    assert made["resultType"] == "task"
    (site.folder / "late.go").touch()
    assert text_of((await status(raw, made["taskId"], "completed"))["result"]) == "done"


async def test_a_task_is_its_users(url: str, raw: Raw) -> None:
    """Another user, and whoever guesses, finds no task, and changes none."""
    async with Raw(url, "alice") as alice, Raw(url, "bob") as bob:
        made = await alice.call("asking_job", question="May I?")
        for thief in (bob, raw):
            for method in ("tasks/get", "tasks/cancel", "tasks/update"):
                assert (await thief.ask(method, taskId=made["taskId"]))["code"] == -32602
        assert (await alice.ask("tasks/get", taskId=made["taskId"]))["status"] == "working"
        await alice.ask("tasks/cancel", taskId=made["taskId"])
        await status(alice, made["taskId"], "cancelled")


@pytest.mark.parametrize("id", ["", "x", "a" * 65, "a" * 100_000, "é", "../x", "{ns}", "task\x00", "*"])
async def test_a_forged_id_is_no_task(raw: Raw, id: str) -> None:
    """Ids that were never given out are refused, whatever is in them."""
    headers, body = raw.request("tasks/get", {"taskId": id})
    assert (await raw.ask("tasks/get", taskId=id))["code"] in {-32602, -32020}
    headers["Mcp-Name"] = "other"
    answer = await raw.http.post(raw.url, headers=headers, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)


@pytest.mark.usefixtures("slow")
async def test_a_task_is_answered_and_cancelled_at_another_gateway(site: Site, url: str, urls: list[str]) -> None:
    """The second gateway reads the question of a task that the first began, answers it, and cancels another one."""
    async with Raw(urls[0], elicits=True) as first, Raw(urls[1], elicits=True) as second, Raw(urls[1]) as mute:
        made = await first.call("asking_job", question="Go on?")
        asked = await status(second, made["taskId"], "input_required")
        (key,) = asked["inputRequests"]
        assert "Go on?" in asked["inputRequests"][key]["params"]["message"]
        silent = await mute.ask("tasks/get", taskId=made["taskId"])
        assert (silent["status"], "toolbus confirm allow" in silent["statusMessage"]) == ("working", True)
        for ignored in ({"other": YES}, {key: {"action": "accept"}}, {key: "junk"}):
            assert await second.ask("tasks/update", taskId=made["taskId"], inputResponses=ignored) is not None
        assert (await second.ask("tasks/get", taskId=made["taskId"]))["status"] == "input_required"
        answered = await second.ask("tasks/update", taskId=made["taskId"], inputResponses={key: YES})
        assert answered["resultType"] == "complete"
        assert text_of((await status(first, made["taskId"], "completed"))["result"]) == "allowed Go on?"
        made = await first.call("job", name="cancelled", parts=1)
        await second.ask("tasks/cancel", taskId=made["taskId"])
        await status(first, made["taskId"], "cancelled")
        # A second cancellation changes nothing.
        assert (await first.ask("tasks/cancel", taskId=made["taskId"]))["resultType"] == "complete"
        await status(second, made["taskId"], "cancelled")


@pytest.mark.usefixtures("slow")
async def test_cancelled_work_that_had_begun_is_cancelled_with_an_unknown_outcome(site: Site, raw: Raw) -> None:
    """A task of a ``once`` tool that is cancelled while it runs ends as ``cancelled``, and says that its outcome is unknown."""
    made = await raw.call("once_job", name="stopped")
    await eventually((site.folder / "stopped.runs").exists, timeout=20)
    await raw.ask("tasks/cancel", taskId=made["taskId"])
    assert (await status(raw, made["taskId"], "cancelled"))["statusMessage"].startswith("outcome_unknown")


async def test_news_of_a_task_are_streamed_at_another_gateway(site: Site, raw: Raw, other: Raw) -> None:
    """A subscriber gets each piece of the text once, in order, and the result; tasks that are not its user's are left out."""
    made = await raw.call("job", name="streamed", parts=3)
    task = made["taskId"]
    headers, body = other.request("subscriptions/listen", {"notifications": {"taskIds": [task, "forged"]}})
    said = ""
    async with other.http.stream("POST", other.url, headers=headers, json=body, timeout=40) as answer:
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            message = json.loads(line[6:])
            if message["method"] == "notifications/subscriptions/acknowledged":
                assert message["params"]["notifications"] == {"taskIds": [task]}
                assert message["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 7}
                go_on(site, "streamed", 0)
                continue
            assert message["method"] == "notifications/tasks"
            piece = message["params"]["_meta"]["toolbus/text"]
            assert piece["from"] == len(said)
            said += piece["text"]
            if "part 0" in said:
                go_on(site, "streamed", 1, 2)
            if message["params"]["status"] == "completed":
                assert text_of(message["params"]["result"]) == "part 0. part 1. part 2. "
                break
    assert said == "part 0. part 1. part 2. "


@pytest.mark.usefixtures("slow")
async def test_a_task_outlives_gateway_and_worker(own_site: Site) -> None:
    """Its gateway gets SIGKILL, then its worker: another gateway reads the whole text, of which no piece came twice."""
    site = own_site
    workers = [site.worker()]
    gateway, url = site.gateway()
    await listed(url, "job")
    async with Raw(url) as raw:
        task = (await raw.call("job", name="long", parts=3))["taskId"]
    gateway.kill()
    _, url = site.gateway()
    await listed(url, "job")
    async with Raw(url) as raw:
        go_on(site, "long", 0)
        await eventually(lambda: has_text(raw, task, "part 0. "), timeout=30)
        workers.append(site.worker())
        workers[0].kill()
        go_on(site, "long", 1, 2)
        done = await status(raw, task, "completed", **FROM_START)
        assert text_of(done["result"]) == "part 0. part 1. part 2. "
        assert done["_meta"]["toolbus/text"]["attempt"] == 2


async def has_text(raw: Raw, task: str, text: str) -> bool:
    """Return whether a task has said a text so far."""
    found = await raw.ask("tasks/get", taskId=task, **FROM_START)
    return text in found["_meta"]["toolbus/text"]["text"]


@pytest.mark.usefixtures("slow")
async def test_a_once_task_runs_once(own_site: Site) -> None:
    """A task with an effect whose worker dies is not run again, and says that its outcome is unknown."""
    site = own_site
    worker = site.worker()
    _, url = site.gateway()
    await listed(url, "once_job")
    async with Raw(url) as raw:
        task = (await raw.call("once_job", name="paid"))["taskId"]
        await eventually((site.folder / "paid.runs").exists, timeout=20)
        await eventually(lambda: has_text(raw, task, "begun"), timeout=20)
        worker.kill()
        site.worker()
        done = await status(raw, task, "completed")
        assert done["result"]["_meta"]["toolbus/error"]["type"] == "outcome_unknown"
    assert (site.folder / "paid.runs").read_text() == "x"


@pytest.mark.usefixtures("slow")
async def test_a_task_outlives_the_server(forks: ForkServer, tmp_path: Path, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """A server that keeps its data gets SIGKILL and starts again; the task goes on, and is read where it was."""
    data = tmp_path / "data"
    data.mkdir()
    server = fresh_server(data_dir=data, appendonly=True, config={"appendfsync": "always"})
    site = Site(forks, tmp_path, server.url)
    try:
        site.worker()
        _, url = site.gateway()
        await listed(url, "job")
        async with Raw(url) as raw:
            task = (await raw.call("job", name="kept", parts=2))["taskId"]
            go_on(site, "kept", 0)
            await eventually(lambda: has_text(raw, task, "part 0. "), timeout=30)
            server.kill()
            server.start()
            go_on(site, "kept", 1)

            async def ended() -> bool:
                return (await raw.ask("tasks/get", taskId=task)).get("status") == "completed"

            await eventually(ended, timeout=40)
            assert text_of((await raw.ask("tasks/get", taskId=task))["result"]) == "part 0. part 1. "
    finally:
        site.close()


@pytest.mark.usefixtures("slow")
async def test_a_task_that_never_ran_is_cancelled(own_site: Site) -> None:
    """A task that waits in the queue of a paused service is removed, and a subscriber hears of its end."""
    site = own_site
    site.worker()
    _, url = site.gateway()
    await listed(url, "job")
    pausing = await asyncio.create_subprocess_exec(
        "python", "-m", "toolbus", "operate", "pause", "tools", cwd=site.folder, env={**site.environment, "PATH": _path()}
    )
    assert await pausing.wait() == 0
    async with Raw(url) as raw:
        made = await raw.call("job", name="queued", parts=1)
        assert made["resultType"] == "task"
        heard: list[dict[str, Any]] = []

        async def listen() -> None:
            headers, body = raw.request("subscriptions/listen", {"notifications": {"taskIds": [made["taskId"]]}})
            async with raw.http.stream("POST", url, headers=headers, json=body, timeout=None) as answer:
                async for line in answer.aiter_lines():
                    take(line)

        def take(line: str) -> None:
            if line.startswith("data: "):
                heard.append(json.loads(line[6:]))

        listening = asyncio.create_task(listen())
        await eventually(lambda: bool(heard), timeout=20)
        await raw.ask("tasks/cancel", taskId=made["taskId"])
        await status(raw, made["taskId"], "cancelled")
        await eventually(lambda: heard[-1]["params"].get("status") == "cancelled", timeout=20)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def _path() -> str:
    """Return a path on which this environment's Python is the first."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"
