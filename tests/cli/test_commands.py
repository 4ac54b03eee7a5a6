"""The command line, run as users run it: real processes against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import redis
from click.testing import CliRunner

from tests.cli.shell import Shell
from tests.cli.test_needs import COMMANDS
from tests.forking import ForkServer, Program
from tests.servers import eventually_sync
from tests.topologies import until
from toolbus.bus.broker.transport.embedded import EmbeddedServer, free_port
from toolbus.bus.values.settings import Settings
from toolbus.edges.gateway.options import GatewayOptions
from toolbus.edges.mounts.options import Options
from toolbus.operations.cli import MOVED, TASKS, main
from toolbus.operations.cli.command import Command
from toolbus.platform.backends.confinement import why_not
from toolbus.toolkit.learning.evidence import Parameters

TOOLS = '''"""Tools of a test."""

import asyncio
import os

from toolbus import tool


@tool(effect="read")
async def shout(text: str, times: int = 1):
    """Shout a text.

    Args:
        text: what to shout
        times: how often
    """
    for _ in range(times):
        yield text.upper() + "!"


@tool(effect="read")
async def who() -> int:
    """Tell the process."""
    return os.getpid()


@tool(effect="read")
async def hang() -> str:
    """Hang."""
    await asyncio.sleep(60)
    return ""
'''


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """Return a shell with a tool file in its folder."""
    (shell.folder / "loud.py").write_text(TOOLS)
    return shell


@pytest.fixture
def served(shell: Shell) -> Shell:
    """Provide a shell with a tool file in its folder and a running worker of that file."""
    shell.start("worker", "loud.py")
    assert shell.run("call", "who", "--wait", "20").returncode == 0
    return shell


def read_until(process: Program, words: str) -> None:
    """Read a process's standard error until a line says so."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"the process ended without saying {words!r}")


def test_call_prints_text_and_tells_success_by_exit_code(served: Shell) -> None:
    """A call's text goes to standard output; a failure is one line on standard error and exit code 1."""
    good = served.run("call", "shout", "text=hey", "times=2")
    assert (good.returncode, good.stdout, good.stderr) == (0, "HEY!HEY!\n", "")
    assert served.run("call", "shout", "text=hey", "--stream").stdout == "HEY!\n"
    bad = served.run("call", "shout", "text=hey", "times=often")
    assert bad.returncode == 1
    assert "invalid_arguments" in bad.stderr
    unknown = served.run("call", "shoot")
    assert (unknown.returncode, "did you mean 'shout'" in unknown.stderr) == (1, True)
    late = served.run("call", "hang", "--timeout", "0.3")
    assert (late.returncode, "deadline_exceeded" in late.stderr) == (1, True)
    assert "Traceback" not in bad.stderr + unknown.stderr + late.stderr


def test_call_takes_arguments_in_every_form(served: Shell) -> None:
    """key=value, key:=json, key=@file, --json and standard input mean what they say."""
    (served.folder / "words.txt").write_text("from a file")
    assert served.run("call", "shout", "text=12").stdout == "12!\n"
    assert served.run("call", "shout", 'text:="x"', "times:=2").stdout == "X!X!\n"
    assert served.run("call", "shout", "text=@words.txt").stdout == "FROM A FILE!\n"
    assert served.run("call", "shout", "--json", '{"text": "j"}').stdout == "J!\n"
    assert served.run("call", "shout", "--json", "-", given='{"text": "stdin"}').stdout == "STDIN!\n"
    result = served.json("call", "shout", "text=x")
    assert (result["success"], result["output"], result["error"], result["meta"]["attempts"]) == (True, "X!", None, 1)
    for wrong in (["text"], ["text=@nowhere"], ["--json", "[1]"], ["text:={"]):
        assert served.run("call", "shout", *wrong).returncode == 2


@pytest.mark.usefixtures("slow")
def test_tools_services_and_describe_show_what_there_is(served: Shell) -> None:
    """Tools, services and one tool's whole description, for people and as JSON."""
    assert [tool["name"] for tool in served.json("tools")] == ["hang", "shout", "who"]
    (service,) = served.json("see", "services")
    assert (service["id"], service["workers"], service["queued"], service["running"]) == ("loud", 1, 0, 0)
    described = json.loads(served.run("see", "describe", "shout").stdout)
    assert described["parameters"]["properties"]["text"] == {"type": "string", "description": "what to shout"}
    assert "shout" in served.run("tools").stdout
    definitions = json.loads(served.run("tools", "--format", "openai", "--strict").stdout)
    assert [each["function"]["name"] for each in definitions] == ["hang", "shout", "who"]
    assert definitions[1]["function"]["strict"] is True
    nothing = served.run("see", "describe", "shoot")
    assert (nothing.returncode, "shout" in nothing.stderr) == (1, True)


def test_static_descriptors_are_checked_stored_and_removed(served: Shell) -> None:
    """An invalid descriptor is refused by `put` with its field; list, get and rm work on stored ones."""
    document = {"type": "tool-service", "name": "yell", "description": "Yell", "service": "loud"}
    assert served.run("operate", "items", "put", "tool/yell", given=json.dumps(document)).returncode == 0
    assert "tool/yell" in served.run("operate", "items", "list", "tool/").stdout
    assert [each["key"] for each in served.json("operate", "items", "list", "tool/")] == ["tool/yell"]
    assert json.loads(served.run("operate", "items", "get", "tool/yell").stdout) == document
    for wrong, word in (({**document, "service": ""}, "service"), ({**document, "name": "other"}, "other"), ([], "object")):
        refused = served.run("operate", "items", "put", "tool/yell", given=json.dumps(wrong))
        assert (refused.returncode, word in refused.stderr) == (1, True)
    taken = served.run("operate", "items", "put", "tool/shout", given=json.dumps({**document, "name": "shout"}))
    assert (taken.returncode, "published" in taken.stderr) == (1, True)
    assert served.run("operate", "items", "rm", "tool/yell").returncode == 0
    assert served.run("operate", "items", "rm", "tool/yell").returncode == 1
    assert served.run("operate", "items", "put", "nonsense").returncode == 2


@pytest.mark.usefixtures("slow")
def test_a_paused_service_takes_nothing_until_it_is_resumed(served: Shell) -> None:
    """While paused calls wait; purge answers them as cancelled; resume serves again."""
    (worker,) = served.started
    assert isinstance(worker, Program)
    assert served.run("operate", "pause", "loud").returncode == 0
    read_until(worker, "service.paused")
    waiting = served.start("call", "shout", "text=x", "--timeout", "30")
    eventually_sync(lambda: served.json("see", "services")[0]["queued"] == 1)
    assert served.json("see", "services")[0]["paused"]
    assert "purged 1" in served.run("operate", "purge", "loud", "--yes").stdout
    _, errors = waiting.communicate(timeout=20)
    assert (waiting.returncode, "cancelled" in errors) == (1, True)
    assert served.run("operate", "resume", "loud").returncode == 0
    assert served.run("call", "shout", "text=x").stdout == "X!\n"
    assert served.run("operate", "resume", "loud").stdout == "loud was not paused\n"
    for words in (["operate", "pause", "nowhere"], ["operate", "resume", "nowhere"], ["operate", "purge", "nowhere", "--yes"]):
        unknown = served.run(*words)
        assert (unknown.returncode, "there is no service 'nowhere'" in unknown.stderr) == (1, True)


@pytest.mark.usefixtures("slow")
def test_several_processes_are_kept_alive_and_stopped_together(shell: Shell) -> None:
    """A killed child is replaced, SIGTERM stops them all with exit code 0, and none outlives a killed supervisor, which is a loss."""
    supervisor = shell.start_anew("worker", "loud.py", "--processes", "2", "--lease", "1")
    eventually_sync(lambda: [each["workers"] for each in shell.json("see", "services")] == [2])
    victim = shell.json("call", "who")["data"]
    os.kill(victim, signal.SIGKILL)
    seen = {victim}

    def replaced() -> bool:
        seen.add(shell.json("call", "who", "--timeout", "60")["data"])
        return len(seen) >= 3

    eventually_sync(replaced)
    supervisor.terminate()
    _, errors = supervisor.communicate(timeout=20)
    assert supervisor.returncode == 0, errors
    assert "supervisor.restarting" in errors
    orphaning = shell.start("worker", "loud.py", "--processes", "2", "--lease", "1")
    eventually_sync(lambda: [each["workers"] for each in shell.json("see", "services")] == [2])
    orphaning.kill()
    # Nobody has asked the children to leave, so their service is missed.
    eventually_sync(lambda: [each["state"] for each in shell.json("see", "services")] == ["down"])


@pytest.mark.usefixtures("slow")
def test_a_service_whose_workers_were_killed_is_listed_as_down(shell: Shell) -> None:
    """Registry entries of a killed worker are not shown as live, even when no process sweeps them out."""
    killed, stopped = (shell.start("worker", "loud.py", "--lease", "1") for _ in range(2))
    eventually_sync(lambda: [each["workers"] for each in shell.json("see", "services")] == [2])
    killed.kill()
    stopped.terminate()
    assert stopped.wait(20) == 0
    eventually_sync(lambda: [(each["live"], each["workers"]) for each in shell.json("see", "services")] == [(False, 0)])


@pytest.mark.usefixtures("slow")
def test_a_service_that_was_stopped_is_listed_until_it_is_forgotten(shell: Shell) -> None:
    """It was withdrawn on purpose, and says so; an operator takes it off the list."""
    stopped = shell.start("worker", "loud.py")
    eventually_sync(lambda: [each["state"] for each in shell.json("see", "services")] == ["live"])
    stopped.terminate()
    assert stopped.wait(20) == 0
    [found] = shell.json("see", "services")
    assert (found["state"], found["workers"], found["live"], found["gone"] > 0) == ("withdrawn", 0, False, True)
    assert " withdrawn" in shell.run("see", "services").stdout
    key = f"tool-service/{found['id']}"
    assert shell.run("operate", "items", "rm", "--force", key).returncode == 0
    assert shell.json("see", "services") == []
    assert "there is no static descriptor" in shell.run("operate", "items", "rm", "--force", key).stderr


@pytest.mark.usefixtures("slow")
def test_reload_serves_what_the_file_says_now(shell: Shell) -> None:
    """With --reload a changed tool file is served without anybody restarting the worker, also within the second in which it was written."""
    del shell.environment["PYTHONDONTWRITEBYTECODE"]
    shell.start_anew("worker", "loud.py", "--reload")
    assert shell.run("call", "shout", "text=a", "--wait", "20").stdout == "A!\n"
    (shell.folder / "loud.py").write_text(TOOLS.replace('"!"', '"?"'))
    eventually_sync(lambda: shell.run("call", "shout", "text=a", "--wait", "5").stdout == "A?\n")


@pytest.mark.usefixtures("slow")
def test_health_is_told_by_file_and_port(shell: Shell) -> None:
    """The file is fresh and the port answers while the worker serves; the file goes when it stops."""
    port = free_port()
    worker = shell.start_anew("worker", "loud.py", "--health-file", "health.json", "--health-port", str(port))
    health = shell.folder / "health.json"
    eventually_sync(health.exists)
    assert json.loads(health.read_text())["healthy"] is True
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        assert (answer.status, json.loads(answer.read())["healthy"]) == (200, True)
    worker.terminate()
    worker.communicate(timeout=15)
    assert worker.returncode == 0
    assert not health.exists()


def test_a_probe_that_cannot_be_kept_ends_the_worker(shell: Shell) -> None:
    """A port that is taken and a file that can't be written are one line each; a file is not quietly left out for several processes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for words, told in (
            (("--health-port", str(taken.getsockname()[1])), "--health-port can't be kept: "),
            (("--health-file", "."), "--health-file can't be kept: "),
        ):
            done = shell.run("worker", "loud.py", *words)
            assert (done.returncode, done.stderr.splitlines()[-1].startswith(f"toolbus: {told}")) == (1, True), done.stderr
    assert shell.run("worker", "loud.py", "--health-file", "health.json", "--processes", "2").returncode == 2


def test_a_reloaded_worker_keeps_its_probe(shell: Shell) -> None:
    """With --reload the health port answers, too, and a target that is not there yet is told by the worker."""
    port = free_port()
    shell.start("worker", "loud.py", "--reload", "--health-port", str(port))

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    eventually_sync(healthy)
    absent = shell.start_anew("worker", "not.there", "--reload")
    assert absent.stderr is not None
    assert "there is no module 'not.there'" in absent.stderr.readline()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere.py", "no file"),
        ("no.such.module", "no module"),
        ("broken.py", "broken.py:1"),
        ("empty.py", "defines no ToolService"),
        ("loud.py:nothing", "has no 'nothing'"),
        ("loud.py:", "is no target"),
        (":name", "is no target"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_line(shell: Shell, target: str, words: str) -> None:
    """A missing file, a broken import and a module without tools are one line each, exit code 1, no traceback."""
    (shell.folder / "broken.py").write_text("import nothing_like_this\n")
    (shell.folder / "empty.py").write_text("")
    done = shell.run("worker", target)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_unreachable_server_says_what_to_do(shell: Shell) -> None:
    """Connection refused is one line for every command; who has set a URL is not told to start another server."""
    shell.environment |= {"TOOLBUS_URL": "redis://127.0.0.1:1", "TOOLBUS_CONNECT_TIMEOUT": "0"}
    for words in (["tools"], ["call", "x"], ["worker", "loud.py"], ["see", "services"], ["operate", "items", "list"]):
        done = shell.run(*words)
        assert done.returncode == 1
        assert done.stderr.endswith("Connection refused; start it, or correct its URL\n")
        assert len(done.stderr.strip().splitlines()) == 1
    assert shell.run("doctor").returncode == 1


@pytest.mark.usefixtures("slow")
def test_output_that_cannot_be_written_is_one_line(shell: Shell) -> None:
    """A full disk ends a command with the system's own words and exit code 1; a reader that has enough ends it quietly."""
    command = [sys.executable, "-m", "toolbus", "see", "settings"]
    # Without a locale Python keeps what it could not write, and tries again when it ends.
    plain = {name: value for name, value in shell.environment.items() if name != "LANG" and not name.startswith("LC_")}
    for environment in (shell.environment, plain):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (1, "toolbus: can't write to standard output: No space left on device\n")
    quick = subprocess.run(["sh", "-c", f"{' '.join(command)} | true"], env=shell.environment, capture_output=True, timeout=60, check=True)
    assert quick.stderr == b""


def test_ctrl_c_ends_every_command_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a command that runs no event loop ends with 130, and says nothing."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Settings, "sources", interrupted)
    done = CliRunner().invoke(main, ["see", "settings"])
    assert (done.exit_code, done.output) == (130, "")


def test_doctor_finds_a_good_server_good(shell: Shell) -> None:
    """Against a server without eviction every check is ok or a warning with advice."""
    findings = {finding["check"]: finding for finding in shell.json("doctor")}
    assert findings["memory policy"]["state"] == "ok"
    assert "appendonly" in findings["persistence"]["found"]
    assert {finding["state"] for finding in findings.values()} <= {"ok", "warn"}


@pytest.mark.usefixtures("slow")
def test_doctor_says_how_programs_of_models_would_run(shell: Shell) -> None:
    """It names those that are recorded, and warns where they would have the rights of the host."""
    record = {"meta": {"name": "Made", "description": "Do it."}, "sources": [{"type": "local", "host_dir": "made"}], "made_by": "create_1"}
    assert shell.run("operate", "items", "put", "recorded/made_tool", given=json.dumps(record)).returncode == 0
    reason = why_not()
    found = next(each for each in shell.json("doctor") if each["check"] == "confinement")
    assert "made_tool" in found["found"]
    assert (found["state"], reason in found["found"]) == ("warn" if reason else "ok", True)
    shell.environment["TOOLBUS_CONFINE"] = "0"
    found = next(each for each in shell.json("doctor") if each["check"] == "confinement")
    assert found["state"] == "warn"
    assert "all rights" in found["found"]


@pytest.mark.usefixtures("slow")
def test_doctor_advises_what_a_server_with_replicas_lacks(shell: Shell, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """A master that takes writes without its replicas is a warning, and more replicas to wait for than there are is a failure."""
    primary, replica = (fresh_server(config={"repl-diskless-sync-delay": "0"}) for _ in range(2))
    shell.environment["TOOLBUS_URL"] = primary.url

    def finding() -> dict[str, str]:
        done = shell.run("doctor", "--output", "json")
        return next(each for each in json.loads(done.stdout) if each["check"] == "replicas")

    assert finding() == {"check": "replicas", "state": "ok", "found": "none connected"}
    with redis.Redis.from_url(primary.url) as asked:
        asked.config_set("min-replicas-to-write", 1)
        assert finding() == {"check": "replicas", "state": "ok", "found": "none connected, and writes need some of them"}
        asked.config_set("min-replicas-to-write", 0)
    with redis.Redis.from_url(replica.url) as client, redis.Redis.from_url(primary.url) as asked:
        client.replicaof("127.0.0.1", primary.port)
        until(lambda: client.info("replication")["master_link_status"] == "up")
        until(lambda: asked.info("replication")["connected_slaves"])
        assert finding()["state"] == "warn"
        assert "min-replicas-to-write 1" in finding()["found"]
        asked.config_set("min-replicas-to-write", 1)
        assert finding()["state"] == "ok"
        shell.environment["TOOLBUS_WAIT_REPLICAS"] = "2"
        assert finding()["state"] == "fail"


@pytest.mark.usefixtures("slow")
def test_call_waits_for_a_server_as_long_as_for_the_call(shell: Shell, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """One that refuses every write is given up after a short call's time, however long a start may take, and its refusal is told."""
    shell.environment["TOOLBUS_URL"] = fresh_server(config={"min-replicas-to-write": "1"}).url
    for patience in ([], ["--connect-timeout", "0"], ["--connect-timeout", "60"]):
        began = time.monotonic()
        done = shell.run(*patience, "call", "echo", "--timeout", "1")
        assert done.returncode == 1
        assert "toolbus: redis://" in done.stderr
        assert "refused for 1 s what it was asked (NOREPLICAS" in done.stderr
        # Of which a busy machine needs most for a process that starts.
        assert time.monotonic() - began < 8


def test_an_exporter_whose_port_is_in_use_says_what_to_do(shell: Shell) -> None:
    """It is one line, which names the place."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shell.run("operate", "exporter", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"toolbus: can't listen at 127.0.0.1:{port}: "), done.stderr
    assert done.stderr.endswith("; choose another place with --host and --port\n")
    assert done.stderr.count("\n") == 1


def test_what_is_seen_while_writes_are_refused_is_no_all_clear(shell: Shell, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """With every lease ended nobody answers, which is not that nothing runs; lists of what serves say once why it may be gone."""
    shell.environment["TOOLBUS_URL"] = fresh_server(config={"min-replicas-to-write": "1"}).url
    why = "the server takes nothing new (NOREPLICAS Not enough good replicas to write.); `toolbus doctor` says what to do"
    for asked in (["see", "stats"], ["see", "stats", "--instance"], ["see", "calls", "--running"]):
        done = shell.run(*asked)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"toolbus: workers can't answer: {why}\n"), asked
    for listed in (["see", "services"], ["tools"]):
        done = shell.run(*listed)
        assert (done.returncode, done.stderr.count(why)) == (0, 1), listed


@pytest.mark.usefixtures("slow")
def test_new_writes_a_tool_whose_test_passes(shell: Shell) -> None:
    """The generated test passes as it is, and nothing is ever overwritten."""
    assert shell.run("new", "weather").returncode == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_weather.py"]
    done = subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    again = shell.run("new", "weather")
    assert (again.returncode, "left as it is" in again.stderr) == (1, True)
    assert shell.run("new", "not-a-name").returncode == 2
    hiding = shell.run("new", "json")
    assert (hiding.returncode, "a module of Python itself" in hiding.stderr) == (1, True)


def test_settings_tell_where_each_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, their sources, and no password; a wrong one names its variable."""
    monkeypatch.setenv("TOOLBUS_LEASE", "7")
    monkeypatch.setenv("TOOLBUS_URL", "redis://:secret@localhost:6379")
    shown = CliRunner().invoke(main, ["--namespace", "mine", "see", "settings", "--output", "json"])
    settings = json.loads(shown.output)
    assert settings["lease"] == {"value": 7.0, "source": "TOOLBUS_LEASE", "meaning": Settings.meanings()["lease"]}
    assert settings["grace"]["meaning"] == "how long running calls may take to finish when a worker stops."
    assert settings["namespace"]["source"] == "argument 'namespace'"
    assert "secret" not in shown.output
    monkeypatch.setenv("TOOLBUS_LEASE", "soon")
    wrong = CliRunner().invoke(main, ["see", "settings"])
    assert (wrong.exit_code, "TOOLBUS_LEASE" in wrong.output) == (1, True)


def test_every_command_explains_itself() -> None:
    """--help works for every command and is not empty."""
    runner = CliRunner()
    for name in ["", *main.list_commands(None)]:  # type: ignore[attr-defined]
        shown = runner.invoke(main, [*([name] if name else []), "--help"])
        assert shown.exit_code == 0
        assert len(shown.output.splitlines()) > 4


def test_memory_is_refused_where_it_reaches_nobody(shell: Shell) -> None:
    """Commands that meet other processes say that memory:// has none, instead of serving nobody."""
    shell.environment["TOOLBUS_URL"] = "memory://"
    for words in (["worker", "loud.py"], ["dev"], ["see", "services"]):
        done = shell.run(*words)
        assert (done.returncode, "memory:// exists in one process only" in done.stderr) == (1, True)
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [("--timeout", "nan"), ("--timeout", "-1"), ("--wait", "nan"), ("--confirm-timeout", "inf")])
def test_what_is_no_time_is_a_mistake_of_usage(words: tuple[str, ...]) -> None:
    """NaN, infinity and negative numbers are no seconds."""
    done = CliRunner().invoke(main, ["call", "shout", *words])
    assert (done.exit_code, words[0] in done.output) == (2, True)


@pytest.mark.usefixtures("slow")
def test_dev_ends_with_its_worker(shell: Shell) -> None:
    """A target that can't be served ends the command at once, with the worker's own words."""
    done = shell.run("dev", "nowhere.py")
    assert done.returncode == 1
    # The gateway starts beside the worker, and may have begun to serve.
    said = [line for line in done.stderr.splitlines() if '"event":"gateway.' not in line]
    assert said == ["toolbus: there is no file or folder 'nowhere.py'"]


@pytest.mark.usefixtures("slow")
def test_dev_starts_a_server_and_workers_and_stops_all(forks: ForkServer, tmp_path: Path) -> None:
    """`toolbus dev` serves the examples on a server of its own, and SIGTERM leaves nothing running."""
    port = free_port()
    shell = Shell(forks, tmp_path, f"redis://127.0.0.1:{port}", "default")
    try:
        dev = shell.start_anew("dev")
        assert dev.stdout is not None
        introduction = "".join(iter(dev.stdout.readline, "Ctrl-C stops everything.\n"))
        assert "toolbus call calculator" in introduction
        assert shell.run("call", "calculator", "expression=6*7").stdout == "42\n"
        dev.terminate()
        dev.communicate(timeout=20)
        assert dev.returncode == 0
        assert shell.run("tools").returncode == 1
    finally:
        shell.close()


def test_the_first_level_fits_on_one_screen() -> None:
    """It has 18 commands at most, each once in the line of its task, and its help leaves room for the prompt on a screen of 24 lines."""
    # Of a terminal with 80 columns, click leaves two free.
    shown = CliRunner().invoke(main, ["--help"], terminal_width=78)
    assert len(shown.output.splitlines()) <= 23
    assert max(map(len, shown.output.splitlines())) <= 80
    lines = re.sub(r"\n {6,}", " ", shown.output.partition("\nCommands")[2].partition("\n\n")[0]).splitlines()[1:]
    found = {line.split()[0]: re.findall(r"[ ;] ([a-z]+): \w", line) for line in lines}
    assert found == {task: [*commands] for task, commands in TASKS.items()}
    names = [name for commands in found.values() for name in commands]
    assert names == main.list_commands(click.Context(main))
    assert len(names) <= 18


@pytest.mark.parametrize("name", sorted(MOVED))
def test_an_old_name_says_where_its_command_is(name: str) -> None:
    """It fails with exit code 2, and the command that it names exists."""
    done = CliRunner().invoke(main, [name, "--any", "thing"])
    assert (done.exit_code, f"'{name}' is now `toolbus {MOVED[name]}`" in done.output) == (2, True), done.output
    assert CliRunner().invoke(main, [*MOVED[name].split(), "--help"]).exit_code == 0


def _any_value(param: click.Parameter) -> Any:
    """Return a value that is not the parameter's default."""
    kind = param.type
    value: Any = "text"
    if isinstance(param, click.Option) and param.is_flag:
        value = not (param.secondary_opts and param.default)
    elif isinstance(kind, click.Choice):
        value = next(each for each in kind.choices if each != param.default)
    elif isinstance(kind, click.Path) and kind.type is not None:
        value = kind.type("/" if kind.exists else "text")
    elif "integer" in kind.name or "float" in kind.name or kind.name == "seconds":
        value = 3
    return (value, value) if param.multiple or param.nargs == -1 else value


@pytest.mark.parametrize(
    ("words", "values"),
    [(("serve",), GatewayOptions()), (("mount",), Options()), (("toolkit", "learning", "run"), Parameters())],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_option_says_the_default_of_the_value_that_it_fills(words: tuple[str, ...], values: msgspec.Struct) -> None:
    """The default stands in the option, or in its help, as it stands in the class of the values."""
    filled = [(param, getattr(values, str(param.name), None)) for param in COMMANDS[words].params]
    found = {param.opts[0]: (param, value) for param, value in filled if value and isinstance(param, click.Option)}
    assert len(found) >= 2
    for name, (param, value) in found.items():
        assert param.default == value or f"({value:g})." in str(param.help), f"{name} is {value} in {type(values).__name__}"


SERVING = [words for words, found in COMMANDS.items() if isinstance(found, Command) and "lifeline" in found.kept]


@pytest.mark.parametrize("words", SERVING, ids=" ".join)
def test_children_get_every_option(words: tuple[str, ...]) -> None:
    """A command that is started by another process gets all that is given, but for what is the first process's own."""
    *_, name = words
    found = COMMANDS[words]
    assert isinstance(found, Command)
    passed = [param for param in found.params if param.expose_value and param.name not in found.kept]
    given = {str(param.name): _any_value(param) for param in passed}
    options, arguments = found.words(given)
    again = found.make_context(name, [*options, "--", *arguments], resilient_parsing=True).params
    assert {each: again[each] for each in given} == given
    for param in passed:
        assert isinstance(param, click.Argument) or {*param.opts, *param.secondary_opts} & {*options}, f"children never get {param.opts[0]}"
    assert len(given) >= 5
    assert len(SERVING) >= 5
