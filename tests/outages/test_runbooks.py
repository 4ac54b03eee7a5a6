"""Each command of the runbooks is run against the fault that it is for, and what the page says is seen there."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.docs.fences import ROOT
from tests.forking import ForkServer
from tests.outages.installation import SERVICE, Installation, installed
from tests.outages.table import OUTAGES
from tests.servers import eventually
from toolbus.bus.values.results import ErrorInfo, ErrorType
from toolbus.bus.watch.faults import CHECKS, SERVER

PAGES = {name: ROOT / "docs" / "how-to" / f"{name}.md" for name in ("runbooks", "operations")}
CAUSES = {outage.name: outage.cause for outage in OUTAGES}
PROGRAMS = re.compile(r"(toolbus|redis-cli|redis-server|kubectl|systemctl|kill|date|export|cp)\b(?![.\]])|.*\(\) \{")
# Words that mean the same wherever they stand: errors, and the checks whose faults ``test_outages`` makes. Other tests know the settings.
WORDS = {*get_args(ErrorType), *(check.name for check in CHECKS), SERVER, "doctor"}
SETTING = re.compile(r"TOOLBUS_[A-Z_]+(=.*)?$")

# What can't be run or seen in the scenario of its heading, and why.
ELSEWHERE = {
    ("runbooks", "A service is slow or answers `overloaded`"): {
        "began_late": "a slot that comes free in the call's last moment; tests/faults/test_effects.py",
        "worker.loop_blocked": "needs a tool that blocks its worker; tests/worker",
    },
    ("runbooks", "Nobody serves a service"): {
        **dict.fromkeys(("ToolbusProcessGone", "ToolbusNotReady", "ToolbusUnwatched"), "an alert; tests/outages/test_outages.py"),
        "worker.loop_blocked": "needs a tool that blocks its worker; tests/worker",
    },
    ("runbooks", "Calls end as dead letters"): {'isolation="process"': "a tool's option; tests/isolation"},
    ("runbooks", "The server's memory is full"): {
        "redis-cli --bigkeys": "is a loop of redis-cli itself, which does not come with the server of the tests",
        "session.unsaved": "needs a session; tests/faults/test_sessions.py",
    },
    ("runbooks", "Change a password or a key"): {
        "ACL SAVE": "needs a server with a file of users, which the one of the tests has not",
        "CONFIG REWRITE": "needs a server with a file of its settings, which the one of the tests has not",
    },
    ("runbooks", "Back up and restore"): {
        "*": "tests/recovery/test_backup.py runs its blocks on real servers, tests/cli/test_items.py the rest",
    },
    ("operations", "Failover"): {
        "toolbus doctor": "tests/outages/test_outages.py has the fault, that fewer replicas follow than are waited for"
    },
    ("operations", "Health"): {"toolbus worker": "is named with its options; tests/cli/test_probes.py asks each path"},
}


def _sections(page: str) -> Iterator[tuple[str, str]]:
    """Yield the headings of a page and their texts, without blocks, which ``tests.docs`` runs, and without the table of faults."""
    text = re.sub(r"^```.*?^```$", "", PAGES[page].read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for part in text.split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        yield title, rest


def _codes(page: str, heading: str) -> list[str]:
    """Return what a section has as code, without what need not be tried."""
    excused = ELSEWHERE.get((page, heading), {})
    found = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", dict(_sections(page))[heading])]
    return [each for each in dict.fromkeys(found) if "*" not in excused and each not in excused]


# A report of ``doctor`` in which no check fails.
_WELL = "^(?!.* fail ).*"


class Book:
    """A section of a page, whose commands are run in an installation.

    Attributes:
        seen: what they printed, and what processes logged.
    """

    def __init__(self, at: Installation, page: str, heading: str) -> None:
        self.at = at
        self._page = page
        self._codes = _codes(page, heading)
        self._left = [code for code in self._codes if PROGRAMS.match(code)]
        self.seen = ""

    async def run(self, command: str, code: int | None = 0, **values: str) -> str:
        """Run a command of the section, which is to end with ``code`` if one is given; words that only its reader knows are replaced."""
        assert command in self._codes, command
        self._left = [each for each in self._left if each != command]
        words = [part for word in shlex.split(command) for part in shlex.split(values[word] if word in values else shlex.quote(word))]
        match words:
            case ["toolbus", "worker", *rest]:
                self.at.shell.start("worker", *rest)
                return ""
            case ["toolbus", *rest]:
                done = await asyncio.to_thread(self.at.shell.run, *rest)
                assert code in {None, done.returncode}, done.stdout + done.stderr
                said = done.stdout + done.stderr
            case ["redis-cli", *rest]:
                said = await asyncio.to_thread(self._redis, rest)
            case _:
                said = await asyncio.to_thread(subprocess.check_output, words, text=True, timeout=30)
        return self.add(said)

    def _redis(self, words: list[str]) -> str:
        with self.at.redis as client:
            return str(client.execute_command(*words))

    def add(self, said: object) -> str:
        """Take in what was seen by other means; return it with single spaces."""
        told = " ".join(str(said).split())
        self.seen += f"\n{told}"
        return told

    async def until(self, command: str, pattern: str, **values: str) -> str:
        """Run a command again and again until it says what it is to say. After an outage `doctor` misses workers until they have beaten."""

        async def said() -> str:
            told = await self.run(command, None, **values)
            return told if re.search(pattern, told) else ""

        return await eventually(said, timeout=60, interval=0.3)

    async def check(self) -> None:
        """Check that every command was run, and that everything else that the section has as code was seen."""
        for process in self.at.shell.started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.terminate()
        for process in self.at.shell.started:
            self.add(await asyncio.to_thread(process.communicate, timeout=60))
        self.at.shell.started.clear()
        assert self._left == [], "run these in the scenario, or give the reason in ELSEWHERE"
        # Of the other page only the commands: what it describes has tests of its own.
        told = self._codes if self._page == "runbooks" else []
        words = [code for code in told if not PROGRAMS.match(code) and not SETTING.match(code) and code not in WORDS]
        missing = [word for word in words if not all(part in self.seen for part in re.split("[ =]", word))]
        assert missing == []


async def _ended(at: Installation, tool: str, timeout: float, **arguments: Any) -> ErrorInfo:
    """Return the error with which a call ends."""
    error = (await at.bus.call(tool, arguments, timeout=timeout)).error
    assert error is not None
    return error


# -- the scenarios ------------------------------------------------------------------------------------


async def _slow(book: Book) -> None:
    at = book.at
    book.add(await _ended(at, "work", 0.5, seconds=60.0))
    await CAUSES["paused with calls waiting"](at)
    assert "paused" in await book.until("toolbus see services", rf"STATE.*\b{SERVICE} .* paused")
    await book.run("toolbus operate resume SERVICE", SERVICE=SERVICE)
    await book.until("toolbus see services", rf"QUEUED.*{SERVICE} .* live")
    await book.run("toolbus see stats SERVICE", SERVICE=SERVICE)
    await at.occupied(3)
    book.add((await _ended(at, "work", 0.5, seconds=1.0)).code)
    assert "work" in await book.until("toolbus see calls --running", r"WORKER.*work")
    await book.until("toolbus see calls", "work")
    ended = at.shell.json("see", "calls", "--failed")
    await book.run("toolbus see calls --call ID", ID=ended[0]["id"])
    waiting = asyncio.ensure_future(_ended(at, "work", 60.0, seconds=1.0))

    def queued() -> bool:
        return len(at.shell.json("see", "services")) > 0 and any(each["queued"] == 4 for each in at.shell.json("see", "services"))

    await eventually(queued, timeout=30)
    await book.run("toolbus operate purge SERVICE --yes", SERVICE=SERVICE)
    assert (await waiting).type == "cancelled"
    # Words that stand for what a reader has: a target.
    await book.run("toolbus worker … --processes N", **{"…": "pool.py --grace 0.1", "N": "2"})
    await at.call("work", 2, seconds=600.0)
    await book.until("toolbus see services", rf"\b{SERVICE} \S+ 3 0 3 ")


async def _nobody(book: Book) -> None:
    at = book.at
    await CAUSES["all workers were killed"](at)
    assert re.search(rf"WORKERS.*\b{SERVICE} \S+ 0 ", await book.run("toolbus see services"))
    await book.run("toolbus worker TARGET", TARGET="pool.py")
    await book.until("toolbus see services", rf"\b{SERVICE} .* live")
    stopped = at.shell.started[-1]
    os.kill(stopped.pid, signal.SIGSTOP)
    await eventually(lambda: "no sign of life" in at.shell.run("doctor").stdout, timeout=60)
    await book.run("kill -CONT PID", PID=str(stopped.pid))
    await book.until("toolbus see services", rf"\b{SERVICE} .* live")
    at.server.kill()
    await _logged(book, stopped, "link.reconnect_failed")
    at.server.start()
    await book.until("toolbus see services", "SERVICE")


async def _failing(book: Book) -> None:
    at = book.at
    await at.answered("work", 1)
    for _ in range(12):
        await _ended(at, "broken", 30.0)
    book.add(at.shell.run("doctor").stdout)
    assert "tool_error" in await book.run("toolbus see stats SERVICE", SERVICE=SERVICE)
    assert "broken" in await book.until("toolbus see calls --failed", "tool_error")
    await book.until("toolbus see calls --tool TOOL", "succeeded", TOOL="work")


async def _dead(book: Book) -> None:
    at = book.at
    await CAUSES["a call kills its workers"](at)
    assert "1 call of pool set aside" in book.add(at.shell.run("doctor").stdout)
    book.add((await at._calls[0]).error)
    letter = at.shell.json("operate", "dead", "list")[0]["id"]
    assert letter in await book.run("toolbus operate dead list")
    names = {"SERVICE": SERVICE, "LETTER": letter}
    assert "die" in await book.run("toolbus operate dead show SERVICE LETTER", **names)
    await book.run("toolbus operate dead redrive SERVICE LETTER", **names)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    await at.start_worker()
    again = await eventually(lambda: at.shell.json("operate", "dead", "list"), timeout=60)
    await book.run("toolbus operate dead drop SERVICE LETTER", **{**names, "LETTER": again[0]["id"]})
    assert "no dead letters" in await book.run("toolbus operate dead list")


async def _logged(book: Book, process: Any, event: str) -> None:
    """Read what a process logs until an event is there."""

    def read() -> None:
        for line in iter(process.stderr.readline, ""):
            book.add(line)
            if event in line:
                return

    await asyncio.wait_for(asyncio.to_thread(read), 90)


async def _server_gone(book: Book) -> None:
    at = book.at
    await CAUSES["the server is away"](at)
    await _logged(book, at.worker, "link.reconnect_failed")

    def ready() -> int:
        try:
            return int(urllib.request.urlopen(f"http://127.0.0.1:{at.ports['worker']}/ready", timeout=5).status)
        except urllib.error.HTTPError as error:
            return error.code

    assert await eventually(lambda: ready() == 503, timeout=60)
    book.add("/ready 503")
    assert "can't reach" in await book.run("toolbus doctor", code=1)
    at.server.start()
    await _logged(book, at.worker, "link.restored")
    await book.until("toolbus doctor", f"{_WELL}server ok")
    await at.answered("work", 1)
    await CAUSES["the server stands still"](at)
    assert "Timeout" in await book.run("toolbus doctor", code=1)
    await book.run("kill -CONT PID", PID=str(at.server.pid))
    await book.until("toolbus doctor", f"{_WELL}server ok")
    await at.answered("work", 1)


async def _memory(book: Book) -> None:
    at = book.at
    await CAUSES["the server's memory is full"](at)
    assert (await _ended(at, "work", 30.0)).type == "overloaded"
    assert "memory is full" in await book.run("toolbus doctor", code=1)
    await book.run("toolbus see services")
    await book.run("redis-cli CONFIG SET maxmemory 2gb")
    assert "noeviction" in await book.run("redis-cli CONFIG GET maxmemory-policy")
    assert "memory ok" in await book.run("toolbus doctor")
    await at.answered("work", 1)


async def _writes(book: Book) -> None:
    at = book.at
    await CAUSES["the server can't write its snapshot and refuses writes"](at)
    assert "MISCONF" in await book.run("toolbus doctor", code=1)
    assert "'rdb_last_bgsave_status': 'err'" in await book.run("redis-cli INFO persistence")
    folder = at.server.data_dir
    assert str(folder) in await book.run("redis-cli CONFIG GET dir")
    assert folder is not None
    (folder / "dump.rdb").rmdir()
    await book.run("redis-cli BGSAVE")
    await book.until("redis-cli INFO persistence", "'rdb_last_bgsave_status': 'ok'")
    at.configure(min_replicas_to_write=1, appendonly="yes", appendfsync="no")
    assert "NOREPLICAS" in await book.run("toolbus doctor", code=1)
    held = asyncio.ensure_future(at.bus.call("work", {}, timeout=60.0))
    await _logged(book, at.worker, "link.held_up")
    await book.run("redis-cli CONFIG SET min-replicas-to-write 0")
    await held
    await book.until("toolbus doctor", f"{_WELL}appendfsync is no")
    await book.run("redis-cli CONFIG SET appendfsync everysec")
    await book.until("toolbus doctor", f"^(?!.*(MISCONF|NOREPLICAS|appendfsync)){_WELL}")
    await at.answered("work", 1)


async def _clock(book: Book) -> None:
    at = book.at
    await CAUSES["a clock was set"](at)
    assert "60.0 s from here" in await book.until("toolbus doctor", f"{_WELL}clock warn")
    there, here = await book.run("redis-cli TIME"), await book.run("date +%s")
    assert 50 < int(there.strip("(").partition(",")[0]) - int(here) < 70
    at.server.kill()
    at.server._binary = None
    at.server.start()
    assert "clock ok" in await book.until("toolbus doctor", f"{_WELL}clock ok")


async def _cut_off(book: Book) -> None:
    at = book.at
    await CAUSES["the server cuts off slow readers"](at)
    assert "has cut off" in book.add(at.shell.run("doctor").stdout)
    assert re.search("'client_output_buffer_limit_disconnections': [1-9]", await book.run("redis-cli INFO stats"))
    await book.run("redis-cli CLIENT LIST")
    with at.redis as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await _logged(book, at.worker, "link.restored")
    await book.run('redis-cli CONFIG SET client-output-buffer-limit "normal 0 0 0"')
    await book.run("redis-cli CONFIG RESETSTAT")
    assert "'client_output_buffer_limit_disconnections': 0" in await book.run("redis-cli INFO stats")
    assert "has cut off" not in at.shell.run("doctor").stdout


async def _lines(book: Book) -> None:
    await CAUSES["log lines are lost"](book.at)
    assert "log lines of the worker" in book.add(book.at.shell.run("doctor").stdout)


async def _upgrade(book: Book) -> None:
    assert "protocol" in await book.run("toolbus doctor")
    # It lets a worker die, whose call is to be taken over.
    del book.at.shell.environment["TOOLBUS_MAX_DELIVERIES"]
    await book.run("toolbus doctor --deep")
    await book.run("toolbus operate dead list")
    await book.run("toolbus operate migrate --dry-run")
    await book.run("toolbus operate migrate")


async def _password(book: Book) -> None:
    at = book.at
    file = at.shell.folder / "password"
    file.write_text("old")
    with at.redis as client:
        client.execute_command("ACL", "SETUSER", "workers", "on", ">old", "~*", "&*", "+@all")
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    url = at.shell.environment["TOOLBUS_URL"]
    at.shell.environment |= {"TOOLBUS_URL": url.replace("://", "://workers@"), "TOOLBUS_PASSWORD_FILE": str(file)}
    await at.start_worker()
    await book.run("redis-cli ACL SETUSER workers '>new'")
    file.write_text("new")
    await book.run("redis-cli ACL SETUSER workers '<old'")
    assert int(await book.run("redis-cli CLIENT KILL USER workers")) > 0
    await _logged(book, at.worker, "link.restored")
    await at.answered("work", 1)
    await book.run("toolbus secure tokens add NAME", NAME="ci")
    token = at.shell.json("secure", "tokens", "list")[0]["id"]
    await book.run("toolbus secure tokens revoke ID", ID=token)
    await CAUSES["a token is about to end"](at)
    assert "'ci'" in await book.run("toolbus doctor")


async def _operations(book: Book) -> None:
    for words, inside in (
        ("toolbus see stats [SERVICE]", {"[SERVICE]": SERVICE}),
        ("toolbus see calls --running", {}),
        ("toolbus see calls", {}),
    ):
        await book.run(words, **inside)
    await book.run("toolbus see top", top="top --once")


Scenario = Callable[[Book], Awaitable[None]]
SCENARIOS: dict[tuple[str, str], tuple[Scenario, dict[str, Any]]] = {
    ("runbooks", "A service is slow or answers `overloaded`"): (_slow, {}),
    ("runbooks", "Nobody serves a service"): (_nobody, {}),
    ("runbooks", "Calls of a tool fail"): (_failing, {}),
    ("runbooks", "Calls end as dead letters"): (_dead, {}),
    ("runbooks", "The server is gone"): (_server_gone, {}),
    ("runbooks", "The server's memory is full"): (_memory, {}),
    ("runbooks", "The server refuses writes"): (_writes, {"config": {"save": "3600 1"}}),
    ("runbooks", "A clock was set"): (_clock, {}),
    ("runbooks", "Connections are lost again and again"): (_cut_off, {}),
    ("runbooks", "Log lines are lost"): (_lines, {}),
    ("runbooks", "Upgrade and roll back"): (_upgrade, {}),
    ("runbooks", "Change a password or a key"): (_password, {}),
    ("operations", "See what is going on"): (_operations, {}),
}


@pytest.mark.anyio
@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "heading"), SCENARIOS, ids=lambda each: each)
async def test_a_runbook_mends_its_fault(page: str, heading: str, forks: ForkServer, tmp_path: Path) -> None:
    """Each of its commands is run while its fault is there, and events, columns and states that it names are seen."""
    scenario, options = SCENARIOS[page, heading]
    async with installed(forks, tmp_path, **options) as at:
        book = Book(at, page, heading)
        await scenario(book)
        await book.check()


def test_every_section_with_a_command_is_tried() -> None:
    """A command of a section that no scenario runs has its reason in the table, and the table has no idle rows."""
    every = {(page, heading): text for page in PAGES for heading, text in _sections(page)}
    tried = {key for key in every if any(PROGRAMS.match(code) for code in _codes(*key))}
    assert tried <= set(SCENARIOS) <= every.keys()
    for key, reasons in ELSEWHERE.items():
        assert all(f"`{code}`" in " ".join(every[key].split()) for code in reasons if code != "*"), key
