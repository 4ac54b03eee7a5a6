"""The coding agent: a task becomes a tool that waits for approval, and what its model does wrong is bounded and told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, event, says
from tests.coding import fake_docker
from tests.coding.model import MAIN, REGISTER, STEPS, coding, observed, steps
from tests.coding.workspace.places import needs_namespaces
from tests.contract import Place
from tests.records.made import recorded
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.platform.coding.registering import tried
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.review import rights_of
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on one kind of server: the queue itself is tested on every kind."""
    needs_namespaces()
    return Place(server, namespace)


@pytest.mark.usefixtures("slow")
async def test_a_task_becomes_a_tool_that_waits_for_approval(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was called with its example, its code stands where hosts find it, and nobody serves it yet."""
    monkeypatch.setenv("TOOLBUS_MODEL_PRICES", "m=2/8")
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS)) as given:
        task = await given.submit("a tool that turns a text around")
        result = await given.made(task)
        assert (result["tool_id"], result["state"], result["text"]) == ("reverse_text", "pending", "It turns texts around.")
        record = (await Records(given.bus).all()).pending["reverse_text"]
        assert (record.made_by, record.revision) == (task, 1)
        assert record.examples[0].params == {"text": "abc"}
        assert "cba" in record.examples[0].output
        folder = Path(record.sources[0].host_dir)
        assert folder.is_relative_to(given.tools)
        assert (folder / "main.py").read_text() == MAIN
        assert digest_of_folder(folder) == record.code
        assert [note.name for note in given.tools.glob(".forms/*/reverse_text/*")] == [folder.name]
        assert given.bus.tools.get("reverse_text") is None
        status = await given.status(task)
        assert status["tokens"] > 1_000
        assert status["price"] > 0
        assert any("register_tool" in line for line in status["log"])
        listed = (await given.bus.call("list_tasks")).data
        assert [each["task_id"] for each in listed["recent"]] == [task]


@pytest.mark.usefixtures("slow")
async def test_a_tool_that_does_not_answer_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model is told why, with what the program printed; a task that ends without a tool has failed."""
    broken = "raise SystemExit('no such thing')"
    answers = [
        calls(("create_uv_project", {"name": "reverse"})),
        calls(("write_file", {"path": "reverse/main.py", "content": broken})),
        calls(("register_tool", REGISTER)),
        says("I can't."),
        says("It is impossible."),
    ]
    async with coding(place, monkeypatch, tmp_path, steps(*answers)) as given:
        status = await given.ended(await given.submit("something"))
        assert (status["status"], status["result"]) == ("failed", "it ended without a tool: It is impossible.")
        refused = observed(given.model)[-1]
        assert "it ended before it answered" in refused
        assert "no such thing" in refused
        assert (await Records(given.bus).all()).pending == {}
        assert not [*given.tools.glob("*/*/main.py")]


IN_A_CONTAINER = REGISTER | {"container_port": 8000, "network": True}
"""A project with a Dockerfile."""


def writes(main: str) -> list[Canned]:
    """A model's steps that write such a project."""
    files = {"reverse/main.py": main, "reverse/Dockerfile": "FROM python:3.12-slim\nCOPY main.py .\nCMD python main.py --port 8000\n"}
    return [calls(("write_file", {"path": path, "content": content})) for path, content in files.items()]


@pytest.mark.parametrize("main", [MAIN, "raise SystemExit('no such thing')"], ids=["that answers", "that does not"])
async def test_a_tool_that_was_built_in_a_container_is_registered_as_one(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main: str
) -> None:
    """It is built and called as a host would do that; neither the trial's container nor its image stays."""
    engine = fake_docker.install(tmp_path / "docker", sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'docker' / 'bin'}:{os.environ['PATH']}")
    steps_of = steps(*writes(main), calls(("register_tool", IN_A_CONTAINER)), says("Done."))
    async with coding(place, monkeypatch, tmp_path, steps_of, network="all") as given:
        status = await given.ended(await given.submit("a tool that turns a text around"))
        pending = (await Records(given.bus).all()).pending
        if main == MAIN:
            assert status["status"] == "done", status
            record = pending["reverse_text"]
            [source] = record.sources
            assert (source.type, source.internal_port, source.network, record.meta.backend_runtime) == ("docker", 8000, "", "docker")
            assert "cba" in record.examples[0].output
            assert digest_of_folder(Path(source.host_dir)) == record.code
            assert "in a container in the network 'bridge'" in rights_of(record)
        else:
            assert pending == {}
            assert "no such thing" in observed(given.model)[-1]
    assert [each.name for each in engine.iterdir()] == ["log"]
    created = next(words for words in map(json.loads, (engine / "log").read_text().splitlines()) if words[0] == "create")
    assert {"--cap-drop", "--memory", "no-new-privileges"} <= set(created)


@pytest.mark.parametrize(
    ("changed", "options", "told"),
    [
        ({"network": False}, {"network": "all"}, "say network=true"),
        ({}, {}, "lets no tool reach a network"),
        ({}, {"network": "all", "docker": "false"}, "no containers"),
        pytest.param({"project": "elsewhere"}, {"network": "all"}, "has no Dockerfile", marks=pytest.mark.slow),
    ],
)
async def test_a_container_that_may_not_be_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    """The deployment's limits hold for it, and a person sees that it reaches a network."""
    steps_of = steps(*writes(MAIN), calls(("register_tool", IN_A_CONTAINER | changed)), says("no"))
    async with coding(place, monkeypatch, tmp_path, steps_of, **options) as given:
        await given.ended(await given.submit("something"))
        assert told in observed(given.model)[-1]
        assert (await Records(given.bus).all()).pending == {}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"example": {"text": 5}}, "the example does not fit"),
        pytest.param({"example": {}}, "the example does not fit", marks=pytest.mark.slow),
        ({"input_schema": {"type": "object", "properties": 5}}, "no JSON Schema"),
        pytest.param({"input_schema": {"type": "string"}}, '"type": "object"', marks=pytest.mark.slow),
        ({"tool_id": "../x"}, "tool_id"),
        pytest.param({"project": "../../etc"}, "main.py", marks=pytest.mark.slow),
        ({"project": "elsewhere"}, "main.py"),
        pytest.param({"endpoint_path": "http://other"}, "endpoint_path", marks=pytest.mark.slow),
        ({"network": True}, "this deployment lets no tool reach a network"),
        ({"tool_id": "submit_task"}, "the name of a tool that a worker serves"),
    ],
)
async def test_a_registration_that_is_wrong_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    """Schemas, examples, ids and folders are checked before the code is run."""
    answers = [*STEPS[:2], calls(("register_tool", REGISTER | changed)), says("no")]
    async with coding(place, monkeypatch, tmp_path, steps(*answers)) as given:
        status = await given.ended(await given.submit("something"))
        assert status["status"] == "failed"
        assert told in observed(given.model)[-1]
        assert (await Records(given.bus).all()).pending == {}


@pytest.mark.usefixtures("slow")
async def test_another_tools_id_is_not_taken(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A tool that one task registered is replaced by no other task."""
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS)) as given:
        first = await given.submit("one")
        await given.made(first)
        status = await given.ended(await given.submit("two"))
        assert status["status"] == "failed"
        assert "another tool's id" in observed(given.model)[-1]
        assert (await Records(given.bus).all()).pending["reverse_text"].made_by == first


@pytest.mark.usefixtures("slow")
async def test_an_id_that_is_taken_during_the_trial_is_not_replaced(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A record that is stored while a project is tried stays, and the model is told."""
    other = recorded("reverse_text", made_by="create_other")

    async with coding(place, monkeypatch, tmp_path, steps(*STEPS)) as given:

        async def interrupted(*arguments: Any, **options: Any) -> Any:
            await Records(given.bus).put(other, pending=True)
            return await tried(*arguments, **options)

        monkeypatch.setattr("toolbus.platform.coding.registering.tried", interrupted)
        status = await given.ended(await given.submit("one"))
        assert status["status"] == "failed"
        assert "by somebody else meanwhile" in observed(given.model)[-1]
        assert (await Records(given.bus).all()).pending["reverse_text"] == other


async def test_a_model_that_misbehaves_is_told_and_bounded(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unknown tools, files outside its workspace and calls that are repeated forever are answered with what to do, until its turns end."""
    outside = tmp_path / "outside"
    loop = [calls(("read_file", {"path": "reverse/missing.py"})) for _ in range(9)]
    answers = [
        calls(("launch_rockets", {}), ("write_file", {"path": str(outside), "content": "x"})),
        calls(("write_file", {"path": "../../outside", "content": "x"}), ("write_file", {"path": "a", "content": 5})),
        *loop,
    ]
    async with coding(place, monkeypatch, tmp_path, steps(*answers), requests=10) as given:
        status = await given.ended(await given.submit("something"))
        assert status["status"] == "failed"
        assert "within 10 turns" in status["result"]
        said = observed(given.model)
        assert "launch_rockets" in said[0]
        assert all("Error" in each for each in said)
        assert "in a row" in said[-1]
        assert not outside.exists()
        assert len(given.model.bodies) == 10


@pytest.mark.parametrize("repeated", [("a",), ("a", "b"), ("a", "b", "c")], ids="".join)
async def test_a_model_that_goes_round_in_a_loop_ends_its_task(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repeated: tuple[str, ...]
) -> None:
    """A task whose model repeats calls with the same answers, though it is told, ends long before its requests are used up."""
    loop = [calls(("read_file", {"path": f"reverse/{name}.py"})) for name in repeated] * 80
    async with coding(place, monkeypatch, tmp_path, steps(*loop)) as given:
        status = await given.ended(await given.submit("something"))
        assert (status["status"], "repeats itself" in status["result"]) == ("failed", True)
        assert "in a row" in observed(given.model)[-1]
        assert len(given.model.bodies) == 5 * len(repeated) + 3


@pytest.mark.parametrize(("options", "told"), [({"tokens": 300}, "may use 300"), ({"price": 0.0001}, "may cost 0.00")])
async def test_a_task_that_costs_too_much_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, object], told: str
) -> None:
    """Tokens and prices of all its requests are counted, and it fails when they reach the bound."""
    monkeypatch.setenv("TOOLBUS_MODEL_PRICES", "*=3/15")
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS), **options) as given:
        status = await given.ended(await given.submit("something"))
        assert status["status"] == "failed"
        assert told in status["result"]
        assert len(given.model.bodies) == 1


async def test_an_endpoint_that_refuses_the_key_fails_the_task(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its message is the task's result; nothing is tried again."""
    async with coding(place, monkeypatch, tmp_path, lambda body: Canned(b"{}", status=401, kind="application/json")) as given:
        status = await given.ended(await given.submit("something"))
        assert status["status"] == "failed"
        assert "OPENAI_API_KEY" in status["result"]


async def test_a_task_that_runs_is_cancelled(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its command ends, and its record says so; another user may not cancel it."""
    answers = [*STEPS[:2], calls(("run_in_uv", {"project": "reverse", "command": "echo running; sleep 500", "seconds": 500}))]
    async with coding(place, monkeypatch, tmp_path, steps(*answers)) as given:
        task = await given.submit("something")

        async def sleeps() -> bool:
            return (await given.status(task))["progress"] == "run_in_uv"

        await eventually(sleeps, timeout=30.0)
        refused = await given.bus.call("cancel_task", {"task_id": task}, user="another")
        assert refused.error is not None
        assert (refused.error.type, refused.error.code) == ("forbidden", "not_yours")
        assert (await given.bus.call("cancel_task", {"task_id": task})).data["status"] in {"running", "cancelled"}
        assert (await given.ended(task))["status"] == "cancelled"
        assert not (await given.bus.call("cancel_task", {"task_id": "create_none"})).success


async def test_a_submission_that_is_repeated_is_one_task(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an idempotency key the same task is returned."""
    async with coding(place, monkeypatch, tmp_path, steps(says("no"))) as given:
        found = {await given.submit("a", idempotency_key="k") for _ in range(3)}
        assert len(found) == 1
        await given.ended(found.pop())


@pytest.mark.usefixtures("slow")
async def test_a_tool_is_served_at_once_where_the_deployment_says_so(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With auto-approval the record needs no person."""
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS), auto_approve="true", labels="gpu, lab") as given:
        result = await given.made(await given.submit("something"))
        assert result["state"] == "approved"
        record = (await Records(given.bus).all()).tools["reverse_text"]
        assert record.sources[0].hosts == ("gpu", "lab")


@pytest.mark.usefixtures("slow")
async def test_a_worker_that_leaves_gives_its_task_back(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another one goes on where it was: nothing that the model said is asked for again."""
    held = Canned(event({"role": "assistant", "content": "It turns"}))
    held.hang = True
    answers = [*STEPS[:4], held]
    async with coding(place, monkeypatch, tmp_path, steps(*answers)) as given:
        task = await given.submit("something")
        await eventually(lambda: len(given.model.bodies) == 5, timeout=30.0)
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS)) as given:
        assert (await given.made(task))["tool_id"] == "reverse_text"
        assert len(given.model.bodies) == 1
        assert (await given.status(task))["attempts"] == 1


@pytest.mark.usefixtures("slow")
async def test_what_ended_tasks_left_is_removed(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A workspace goes with the end of its task, and at the start those of tasks that ended elsewhere; others stay."""
    kept, gone = tmp_path / "tasks" / "create_00000001", tmp_path / "tasks"
    kept.mkdir(parents=True)
    async with ToolBus(settings=place.settings) as bus:
        ended = await bus.creations.submit("a")
        await bus.creations.cancel(ended.id)
    (gone / ended.id).mkdir()
    async with coding(place, monkeypatch, tmp_path, steps(*STEPS)) as given:
        assert not (gone / ended.id).exists()
        task = await given.submit("something")
        await given.made(task)
        await eventually(lambda: not (gone / task).exists(), timeout=20.0)
        assert kept.exists()
        empty = await given.bus.call("submit_task", {"spec": "  "})
        assert empty.error.type == "invalid_arguments"
