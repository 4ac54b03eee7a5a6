"""`toolbus protocol conformance` on toolbus's own sides, on the examples in Node.js, and on workers with planted faults."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import msgspec
import pytest

from tests.conformance.faults import AGENT_FAULTS, WORKER_FAULTS
from tests.servers import eventually, eventually_sync
from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.agent_scene import AgentScene
from toolbus.operations.conformance.checks import LEVELS, Broken, NotChecked, Outcome, Requirement, Status, Table
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.report import Report
from toolbus.operations.conformance.scene import Program, run_checks
from toolbus.operations.conformance.worker_checks import WORKER
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene
from website.stage import prepared

HERE = Path(__file__).parent
NODE = shutil.which("node")
EXAMPLES = HERE.parent.parent / "examples" / "node"
PROTOCOL = HERE.parent.parent / "docs" / "protocol.md"
EXTENSIONS = PROTOCOL.parent / "reference" / "protocol-extensions.md"
NUMBER = re.compile(r"\b[WA]\d+\b")
# Faults of one test, most of which wait for seconds.
_MOST_FAULTS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts as `toolbus protocol scripts` writes them."""
    path = tmp_path_factory.mktemp("scripts")
    subprocess.run([sys.executable, "-m", "toolbus", "protocol", "scripts", str(path)], check=True, capture_output=True)
    return path


def outcomes(side: str, command: list[str], level: int, *only: str) -> list[Outcome]:
    """Return the outcomes of a worker or an agent."""
    whole = not only
    if side == "worker":
        return asyncio.run(run_checks(WorkerScene, WORKER.chosen(level, only), command, lambda _: None, whole=whole))
    return asyncio.run(run_checks(AgentScene, AGENT.chosen(level, only), command, lambda _: None, whole=whole))


def broken(found: list[Outcome]) -> dict[str, str]:
    """Return the problems by check."""
    return {outcome.name: outcome.problem for outcome in found if outcome.status == "broken"}


def planted(side: str, faults: str, folder: Path) -> list[str]:
    """Return the command of a worker or an agent with faults."""
    return [sys.executable, "-m", f"tests.conformance.planted_{side}", faults, str(folder)]


def with_node(file: str) -> list[str]:
    """Return the command of an example."""
    if NODE is None:
        pytest.skip("there is no Node.js on this machine: the examples in examples/node were not run")
    return [NODE, str(EXAMPLES / file)]


OWN = {
    "worker": [sys.executable, "-m", "toolbus", "worker", "toolbus.operations.conformance.checks"],
    "agent": [sys.executable, "-m", "toolbus.operations.conformance.agent"],
}
TABLES: dict[str, Table[Any]] = {"worker": WORKER, "agent": AGENT}
FAULTS = {"worker": WORKER_FAULTS, "agent": AGENT_FAULTS}
SIDES = pytest.mark.parametrize("side", TABLES)


def assert_keeps_everything(side: str, found: list[Outcome]) -> None:
    """Check that nothing is broken, and that all was checked for which there is a check."""
    assert broken(found) == {}
    assert {each.id for each in found if each.status == "not checked"} == {
        each.id for each in TABLES[side].requirements if each.run is None
    }


# All levels take 100 s on a quiet machine, since checks wait for what a program must not do; a level may take three minutes.
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("slow")
@SIDES
def test_toolbus_keeps_every_level(side: str) -> None:
    """toolbus's own worker and agent keep the protocol up to the highest level, and all that can be checked is checked."""
    assert_keeps_everything(side, outcomes(side, OWN[side], max(LEVELS)))


@pytest.mark.usefixtures("slow")
@SIDES
def test_the_examples_in_node_keep_level_1(side: str) -> None:
    """The examples of a worker and an agent in Node.js keep levels 0 and 1."""
    assert broken(outcomes(side, with_node(f"{side}.mjs"), 1)) == {}


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("slow")
@SIDES
def test_programs_written_from_the_document_keep_every_level(side: str, folder: Path) -> None:
    """The worker and the agent into which faults are planted have none by themselves."""
    assert_keeps_everything(side, outcomes(side, planted(side, "none", folder), max(LEVELS)))


def _parts() -> Iterator[Any]:
    """Yield the side, the level and the faults of each part, which takes a minute at most."""
    for side, planted_faults in FAULTS.items():
        levels = {each.name: each.level for each in TABLES[side].requirements}
        for level in LEVELS:
            faults = [fault for fault, (check, _) in planted_faults.items() if levels[check] == level]
            for start in range(0, len(faults), _MOST_FAULTS):
                yield pytest.param(side, level, faults[start : start + _MOST_FAULTS], id=f"{side}-{level}-{start}")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("side", "level", "names"), [*_parts()])
def test_each_planted_fault_is_found(side: str, level: int, names: list[str], folder: Path) -> None:
    """The check that is meant for a fault finds it, and says so in words; each fault is planted alone."""
    faults = {fault: FAULTS[side][fault][0] for fault in names}
    found: dict[str, dict[str, str]] = {}

    def find(fault: str) -> None:
        found[fault] = broken(outcomes(side, planted(side, fault, folder), level, faults[fault]))

    # Most of the time they wait.
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(find, faults))
    assert faults
    assert {fault: list(problems) for fault, problems in found.items()} == {fault: [check] for fault, check in faults.items()}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("slots", "others", "too_few_for"),
    [("few-slots", "W32 W33 W38 W80", ""), ("one-slot", "", "W25 W32 W33 W38 W42 W44 W46 W69 W70")],
)
def test_few_slots_are_no_fault(slots: str, others: str, too_few_for: str, folder: Path) -> None:
    """A worker that runs three calls at the same time, or one, is blamed for nothing; a check that needs more of them says so."""
    found = outcomes("worker", planted("worker", slots, folder), 2, "W29", *others.split(), *too_few_for.split())
    assert broken(found) == {}
    assert {each.id for each in found if each.status == "not checked"} == set(too_few_for.split())


@pytest.mark.usefixtures("slow")
def test_a_killed_worker_leaves_no_row_behind(folder: Path) -> None:
    """A worker that was killed is out of the registry, also when its lease had ended before: the next check waits for no row of it."""
    left: list[bytes] = []

    async def dies(scene: WorkerScene) -> None:
        (instance,) = await scene.instances()
        await scene.program.kill(scene.worker)
        await scene.probe.run("ZADD", scene.keys.live, "XX", 1, f"conformance/{instance}")
        await scene.kill_worker()
        left.extend(await scene.probe.run("ZRANGE", scene.keys.live, 0, -1))
        left.extend(await scene.probe.run("HKEYS", scene.keys.instances("conformance")))

    required = Requirement("W1", 0, "dies", "It dies.", dies)
    (found,) = asyncio.run(run_checks(WorkerScene, [required], planted("worker", "none", folder), lambda _: None))
    assert (found.status, found.problem) == ("holds", "")
    assert [each for each in left if each.startswith((b"conformance/", b"i:"))] == []


@pytest.mark.usefixtures("slow")
def test_calls_that_a_check_leaves_are_gone_before_the_next_one() -> None:
    """A call that one check leaves running is over when the next one begins, and no poison waits for it there."""

    async def leaves_a_call(scene: WorkerScene) -> None:
        await scene.wait_for_text(await scene.publish("count", {"to": 1_000, "delay": 0.1}))
        raise NotChecked("it leaves a call")

    async def needs_an_idle_worker(scene: WorkerScene) -> None:
        await scene.taken_over(await scene.orphan("echo", {"text": "poison"}, scene.settings.max_deliveries))

    checks = [Requirement(f"W{at}", 0, run.__name__, "", run) for at, run in enumerate((leaves_a_call, needs_an_idle_worker))]
    found = asyncio.run(run_checks(WorkerScene, checks, OWN["worker"], lambda _: None))
    assert [(each.status, each.problem) for each in found] == [("not checked", "it leaves a call"), ("holds", "")]


TOGETHER = {
    "worker": (
        "no-pause", "no-catch-up", "no-extend", "big-ends", "no-slow", "drops-at-end", "no-count", "no-rescue", "no-check", "cuts-at-end"
    ),
    "agent": ("no-registry", "ends-with-connections", "one-agent-id", "new-numbers"),
}  # fmt: skip


@pytest.mark.usefixtures("slow")
@SIDES
def test_faults_are_found_together(side: str, folder: Path) -> None:
    """Of a program with many faults at once every check that is meant for one of them finds something."""
    checks = {FAULTS[side][fault][0] for fault in TOGETHER[side]}
    assert set(broken(outcomes(side, planted(side, ",".join(TOGETHER[side]), folder), max(LEVELS), *checks))) == checks


def test_enough_faults_are_planted() -> None:
    """There are sixty faults of workers or more, and thirty of agents."""
    assert len(WORKER_FAULTS) >= 60
    assert len(AGENT_FAULTS) >= 30


def test_the_sites_page_lists_every_requirement() -> None:
    """The site's page of requirements has a row for each: its number, its level, its meaning, and its check or why there is none."""
    source = PROTOCOL.parent / "reference" / "conformance.md"
    page = prepared(source.read_text("utf-8"), source, source, "main")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [WA]\d+ \|", line)]
    every = {each.id: each for table in (WORKER, AGENT) for each in table.requirements}
    assert sorted(row[0] for row in rows) == sorted(every)
    for number, *about in rows:
        each = every[number]
        assert about == [str(each.level), each.meaning, f"`{each.name}`" if each.run else f"not checked: {each.unchecked}"]


@SIDES
def test_each_fault_has_a_check(side: str) -> None:
    """Each fault names a check that exists; numbers and names are given once, and without gaps."""
    required = TABLES[side].requirements
    assert {check for check, _ in FAULTS[side].values()} <= {each.name for each in required if each.run}
    assert sorted(int(each.id[1:]) for each in required) == list(range(1, len(required) + 1))
    assert len({each.name for each in required}) == len(required)


def test_the_document_and_the_kit_name_the_same_requirements() -> None:
    """Each number of the protocol is one of the kit's, each of the kit's stands in the protocol, and each step has some."""
    text = PROTOCOL.read_text("utf-8") + EXTENSIONS.read_text("utf-8")
    known = {each.id for table in (WORKER, AGENT) for each in table.requirements}
    assert set(NUMBER.findall(text)) == known
    for title, letter in (("An agent", "A"), ("A worker", "W")):
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for step in re.split(r"^(?=\d+\. )", section, flags=re.MULTILINE)[1:]:
            assert re.search(rf"\b{letter}\d+\b", step), f"no requirement in: {step[:80]}"


def test_the_examples_are_short() -> None:
    """The worker and the agent in Node.js have less than 200 lines together."""
    assert sum(len((EXAMPLES / name).read_text().splitlines()) for name in ("worker.mjs", "agent.mjs")) < 200


def test_scripts_are_written_whole(folder: Path) -> None:
    """Each script is written with the parts that it includes, and runs as the server knows it."""
    for script in scripts.ALL:
        text = (folder / f"{script.name}.lua").read_text()
        assert text == script.source
        assert "\n-- include " not in text


@pytest.mark.usefixtures("slow")
def test_a_command_that_is_not_there_is_a_clear_error() -> None:
    """A command that can't be started ends the kit in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "toolbus", "protocol", "conformance", "worker", "--", "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.strip().endswith("can't start 'no-such-program': No such file or directory")


SAY_SO = "import sys, time; print({}, flush=True); time.sleep(99)"
ENDLESS = "import os\nwhile True: os.write({}, b'garbage' * 9_999)"
USELESS = {
    "worker": {
        "ends": ("raise SystemExit(7)", "the program ended with exit code 7"),
        "writes-endlessly": (ENDLESS.format(1), "it wrote more than 67,108,864 bytes"),
    },
    "agent": {
        "ends": ("raise SystemExit(7)", "the agent ended with exit code 7"),
        "writes-endlessly": (ENDLESS.format(2), "it wrote more than 67,108,864 bytes"),
        "writes-a-long-line": (ENDLESS.format(1), "it wrote a line that is too long"),
        "writes-garbage": (SAY_SO.format("'garbage'"), "it wrote a line that is no event: b'garbage\\n'"),
        "writes-deep-garbage": (SAY_SO.format("'[' * 99_999"), f"it wrote a line that is no event: b'{'[' * 100}'"),
    },
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("side", "fault"), [(side, fault) for side, faults in USELESS.items() for fault in faults])
def test_useless_programs_are_told_at_once(side: str, fault: str) -> None:
    """A program that ends, or writes what it should not, is told by the first check, and no other check waits for it."""
    source, problem = USELESS[side][fault]
    first, *others = outcomes(side, [sys.executable, "-c", source], 0)
    assert (first.status, first.problem) == ("broken", problem)
    assert first.exit_code == (7 if fault == "ends" else None)
    assert {(each.status, each.problem) for each in others} == {("not checked", f"{first.id} is broken")}


@pytest.mark.usefixtures("slow")
def test_outcomes_can_be_written_whatever_a_program_sends() -> None:
    """Halves of surrogate pairs, control characters and long texts of a program neither stop a report nor fill it."""
    error = {"type": "\ud800\x1b\0" * 3_333}
    lines = [json.dumps({"call": "1", **event}) for event in ({"text": "\udfff"}, {"end": {"text": "", "error": error}})]
    source = f"import sys; sys.stdin.readline(); print(*{lines!r}, sep='\\n', flush=True); sys.stdin.read()"
    (found,) = outcomes("agent", [sys.executable, "-c", source], 0, "A8")
    report = Report(frozenset(), None)
    report.add(found)
    assert found.problem.startswith("it ended as \\ud800\x1b\0")
    assert found.frames[0] == 'it told {"call": "1", "text": "\\udfff"}'
    assert len(msgspec.json.encode(report.documents())) < 20_000
    ElementTree.fromstring(report.junit())


class Looks:
    """A scene in which one call ends and another begins at once, between two looks at them."""

    def __init__(self, before: int, *, ended: bool) -> None:
        self.before, self.ended = before, ended

    async def frames(self, _: Sent) -> list[dict[str, Any]]:
        """Return a frame of the call that begins."""
        self.before -= 1
        return [{}] if self.before < 0 else []

    async def has_ended(self, _: Sent) -> bool:
        """Return whether the call that ends has."""
        self.before -= 1
        return self.ended and self.before < 0


@pytest.mark.anyio
@pytest.mark.parametrize("before", range(5))
async def test_a_call_that_begins_behind_another_is_in_order(before: int) -> None:
    """The check passes when one call's end and the next one's first frame come together, and finds a call that begins earlier."""
    first, second = Sent("1", "1-0"), Sent("2", "2-0")
    await WorkerScene.check_order(cast("WorkerScene", Looks(before, ended=True)), first, second, "beside it")
    with pytest.raises(Broken, match="beside it"):
        await WorkerScene.check_order(cast("WorkerScene", Looks(before, ended=False)), first, second, "beside it")


@pytest.mark.parametrize("wrong", [lambda: json.loads("[" * 99_999), lambda: int(json.loads("1e999"))])
def test_what_a_check_cannot_read_is_broken(wrong: Callable[[], object]) -> None:
    """A document that nests without an end, or has a number beyond all, breaks a requirement and not the kit."""

    async def read(_: AgentScene) -> None:
        wrong()

    required = Requirement("A1", 0, "reads", "It can be read.", read)
    (found,) = asyncio.run(run_checks(AgentScene, [required], [sys.executable, "-c", "input()"], lambda _: None))
    assert found.status == "broken"
    assert found.problem.startswith("what it sent has another form than docs/protocol.md says")


def test_checks_run_in_two_scenes_and_are_told_in_their_order() -> None:
    """A check that waits for the last one holds, since that one runs beside it; the outcomes come in the order of the requirements."""
    begun = asyncio.Event()

    async def begins(_: AgentScene) -> None:
        begun.set()

    async def waits(_: AgentScene) -> None:
        async with asyncio.timeout(10):
            await begun.wait()

    async def holds(_: AgentScene) -> None:
        pass

    checks = {"A1": holds, "A2": waits, "A3": begins}
    required = [Requirement(number, 0, number, "It does so.", run) for number, run in checks.items()]
    told: list[Outcome] = []
    found = asyncio.run(run_checks(AgentScene, required, [sys.executable, "-c", "input()"], told.append))
    assert [(each.id, each.status) for each in told] == [(number, "holds") for number in checks]
    assert found == told


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@SIDES
def test_an_ended_kit_ends_the_program(side: str, number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM end the kit with the program that it tries, also one that passes them by, and there is no report."""
    source = """if True:
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        path = pathlib.Path(sys.argv[1])
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        time.sleep(99)"""
    pid, report = tmp_path / "pid", tmp_path / "found.xml"
    kit = [sys.executable, "-m", "toolbus", "protocol", "conformance", side, "--junit", str(report)]
    running = subprocess.Popen([*kit, "--", sys.executable, "-c", source, str(pid)], start_new_session=True)
    eventually_sync(pid.exists)
    running.send_signal(number)
    assert running.wait(20) == code
    eventually_sync(lambda: not Path(f"/proc/{pid.read_text()}").exists())
    assert report.read_text() == ""


@pytest.mark.anyio
async def test_a_program_that_is_being_stopped_is_ended_as_well(tmp_path: Path) -> None:
    """A program that passes SIGTERM by does not outlive a kit that is ended while it waits for that program's end."""
    begun = tmp_path / "begun"
    program = Program(["sh", "-c", f"trap '' TERM; touch {begun}; while :; do sleep 0.05; done"], {})
    process = await program.start()
    await eventually(begun.exists)
    stopping = asyncio.create_task(program.stop(process))
    await asyncio.sleep(0)
    stopping.cancel()
    await program.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("turns", range(6))
def test_a_closed_proxy_leaves_no_connection_open(turns: int) -> None:
    """However far the connection of a program had come that was made just before."""

    async def closed_soon() -> None:
        proxy = Proxy(1)
        await proxy.start()
        with socket.create_connection(("127.0.0.1", proxy.port)):
            for _ in range(turns):
                await asyncio.sleep(0)
            await proxy.close()
            # A connection that the loop has accepted by now comes to be later.
            for _ in range(6):
                await asyncio.sleep(0)

    asyncio.run(closed_soon())
    gc.collect()


@pytest.mark.usefixtures("slow")
def test_a_report_that_cannot_be_written_is_told_before_the_checks(tmp_path: Path) -> None:
    """A folder that does not exist ends the kit before any check, in one line that names the file once."""
    path = tmp_path / "none" / "found.xml"
    command = [sys.executable, "-m", "toolbus", "protocol", "conformance", "worker", "--junit", str(path), "--", "false"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (1, "", f"toolbus: can't write {path}: No such file or directory\n")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("option", "problem"), [("--only", "publishes"), ("--check", "No such option '--check'")])
def test_an_unknown_check_is_a_usage_error(option: str, problem: str) -> None:
    """`--only` with a check that does not exist says which there are; an option that does not exist is not taken for the command."""
    command = [sys.executable, "-m", "toolbus", "protocol", "conformance", "agent", option, "nothing", "--", "true"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert problem in found.stderr


def of(name: str, status: Status, **more: Any) -> Outcome:
    """Return an outcome of a requirement."""
    return Outcome(id="W1", level=0, name=name, meaning="It does so.", status=status, **more)


def test_expected_failures_are_no_surprise() -> None:
    """A broken requirement fails unless it is in the file of expected ones, and one of those fails when it holds."""
    for expected, status, failed in ((True, "broken", False), (False, "broken", True), (True, "holds", True), (False, "holds", False)):
        report = Report(frozenset({"a"} if expected else ()), None)
        report.add(of("a", status, problem="wrong" if status == "broken" else ""))  # type: ignore[arg-type]
        assert report.failed == failed


def test_junit_says_what_a_person_needs() -> None:
    """A failure in JUnit has the problem, the frames, what the program wrote and its exit code; what was not checked is skipped."""
    report = Report(frozenset({"known"}), None)
    report.add(of("good", "holds"))
    report.add(of("known", "broken", problem="known"))
    report.add(of("bad", "broken", problem="no end\x00", frames=('{"id": "1"}',), output="Traceback", exit_code=-9))
    report.add(of("none", "not checked", problem="nobody can see it"))
    suite = ElementTree.fromstring(report.junit())
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "1", "2"]
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "no end?"
    assert (failure.text or "").splitlines() == [
        "It does so. (docs/protocol.md, W1)",
        'frame: {"id": "1"}',
        "it wrote: Traceback",
        "it ended with exit code -9",
    ]


@pytest.mark.usefixtures("slow")
def test_a_broken_requirement_is_explained(tmp_path: Path) -> None:
    """A broken check is told with its number, what the program wrote, its exit code, and how to run it alone."""
    (tmp_path / "broken.txt").write_text("w1 # not written yet\n")
    program = [sys.executable, "-c", "import sys; sys.exit('no server for me')"]
    command = [sys.executable, "-m", "toolbus", "protocol", "conformance", "worker", "--level", "0"]
    found = subprocess.run([*command, "--only", "registers", "--", *program], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    for words in ("BROKEN", "W1 registers", "docs/protocol.md, W1", "it wrote: no server for me", "exit code 1", "--only W1"):
        assert words in found.stdout, found.stdout
    expected = ["--expected", str(tmp_path / "broken.txt"), "--junit", str(tmp_path / "found.xml"), "--output", "json"]
    found = subprocess.run([*command, *expected, "--only", "W1", "--", *program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    (document,) = json.loads(found.stdout)
    assert (document["id"], document["status"], document["holds"], document["expected"]) == ("W1", "broken", False, True)
    assert ElementTree.parse(tmp_path / "found.xml").getroot().get("failures") == "0"
