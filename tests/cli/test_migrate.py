"""``toolbus operate migrate``, and what ``doctor`` says of versions, on the command line."""

from __future__ import annotations

import json

import pytest
import redis

from tests.cli.shell import Shell
from toolbus.bus.broker.registry.versions import NamespaceVersion, SpokenBy
from toolbus.bus.broker.server.keys import Keys
from toolbus.operations import diagnosis

ECHO = """
from toolbus import tool

@tool(service="echoes", effect="read")
def echoes(text: str) -> str:
    "Give a text back."
    return text
"""


def protocol(shell: Shell) -> dict[str, str]:
    """The finding of ``doctor`` about versions."""
    [found] = [each for each in json.loads(shell.run("doctor", "--output", "json").stdout) if each["check"] == "protocol"]
    return found


def test_doctor_counts_who_speaks_which_version(shell: Shell) -> None:
    """The namespace, this process, and the workers."""
    assert protocol(shell)["found"] == "the namespace is of version 1; this process speaks version 1"
    (shell.folder / "echoes.py").write_text(ECHO)
    shell.start("worker", "echoes.py")
    assert shell.run("call", "echoes", "text=a", "--wait", "60").returncode == 0
    assert protocol(shell) == {
        "check": "protocol",
        "state": "ok",
        "found": "the namespace is of version 1; this process speaks version 1; 1 instance speaks version 1",
    }


def test_a_namespace_of_the_newest_version_needs_no_migration(shell: Shell) -> None:
    """It says so, with and without --dry-run, to people and to programs."""
    done = shell.run("operate", "migrate")
    assert (done.returncode, done.stderr) == (0, "")
    assert "is of version 1 already; nothing was to be changed" in done.stdout
    assert shell.run("operate", "migrate", "--dry-run").returncode == 0
    found = shell.json("operate", "migrate")
    assert {name: found[name] for name in ("before", "version", "converted")} == {"before": 1, "version": 1, "converted": 0}
    planned = shell.json("operate", "migrate", "--dry-run")
    assert (planned["before"], planned["version"], planned["changes"], planned["behind"]) == (1, 1, [], [])


def test_decisions_of_an_older_toolbus_are_moved_when_a_person_says_so(shell: Shell) -> None:
    """They are shown first, nothing is moved without a yes, and a second run finds nothing."""
    keys = Keys(shell.environment["TOOLBUS_NAMESPACE"])
    with redis.Redis.from_url(shell.environment["TOOLBUS_URL"]) as client:
        client.hset(keys.items, "pin/echoes", '{"state": "rejected"}')
        assert list(shell.json("operate", "migrate", "--dry-run")["moves"]) == ["pin/echoes"]
        asked = shell.run("operate", "migrate")
        assert (asked.returncode, client.hkeys(keys.pins)) == (1, [])
        assert "to be moved: pin/echoes" in asked.stderr
        moved = shell.run("operate", "migrate", "--yes")
        assert moved.returncode == 0, moved.stderr
        assert "1 moved" in moved.stdout
        assert (client.hget(keys.pins, "pin/echoes"), client.hlen(keys.items)) == (b'{"state": "rejected"}', 0)
    assert "nothing was to be changed" in shell.run("operate", "migrate", "--yes").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("operate", "migrate"),
        ("operate", "migrate", "--dry-run"),
        ("call", "echoes", "text=a"),
    ],
)
def test_a_newer_namespace_is_refused_in_one_line(shell: Shell, words: tuple[str, ...]) -> None:
    """Both versions are named, and the side that is to be upgraded."""
    with redis.Redis.from_url(shell.environment["TOOLBUS_URL"]) as client:
        client.hset(Keys(shell.environment["TOOLBUS_NAMESPACE"]).format, "version", 7)
    done = shell.run(*words)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "is of version 7 of the protocol, and this process speaks version 1: upgrade it" in line
    assert protocol(shell)["state"] == "fail"


@pytest.mark.parametrize("batch", ["0", "-1", "1001", "x"])
def test_a_batch_has_bounds(shell: Shell, batch: str) -> None:
    """A number beyond them is a wrong use."""
    assert shell.run("operate", "migrate", "--batch", batch).returncode == 2


@pytest.mark.parametrize(
    ("namespace", "workers", "advice"),
    [
        (NamespaceVersion("n", 1), [SpokenBy("s", "i", (1, 2))], "1 instance speaks versions 1 to 2; `toolbus operate migrate` raises it"),
        (
            NamespaceVersion("n", 1),
            [SpokenBy("s", "i", None), SpokenBy("s", "j", None), SpokenBy("s", "k", (1, 2))],
            "2 instances speak version 1; 1 instance speaks versions 1 to 2; upgrade s/i and all like it",
        ),
        (NamespaceVersion("n", 1, 2), [], "it is being raised to version 2: run `toolbus operate migrate` again"),
    ],
)
def test_doctor_says_what_keeps_a_namespace_back(
    monkeypatch: pytest.MonkeyPatch, namespace: NamespaceVersion, workers: list[SpokenBy], advice: str
) -> None:
    """The next step is in the line."""
    monkeypatch.setattr("toolbus.operations.diagnosis.VERSION", 2)
    monkeypatch.setattr("toolbus.bus.broker.registry.versions.VERSION", 2)
    found = diagnosis._protocol(namespace, workers)
    assert found.state == "warn"
    assert found.found.endswith(advice)


def test_documents_that_workers_could_have_written_are_moved_after_a_yes(shell: Shell, url: str, namespace: str) -> None:
    """They are shown first; without a yes nothing is moved; a second run has nothing to do."""
    keys = Keys(namespace)
    with redis.Redis.from_url(url) as server:
        server.hset(keys.items, mapping={"group/media": '{"name": "Media"}', "tool/x": "{}"})
        shown = json.loads(shell.run("operate", "migrate", "--dry-run", "--output", "json").stdout)
        assert shown["moves"] == {"group/media": '{"name": "Media"}'}
        assert "Media" in shell.run("operate", "migrate", "--dry-run").stdout
        asked = shell.run("operate", "migrate")
        assert (asked.returncode, "group/media" in asked.stderr, "--yes" in asked.stderr) == (1, True, True)
        assert shell.run("operate", "items", "get", "group/media").returncode == 1
        assert "1 moved" in shell.run("operate", "migrate", "--yes").stdout
        assert shell.json("operate", "items", "get", "group/media") == {"name": "Media"}
        assert server.hkeys(keys.items) == [b"tool/x"]
        assert server.hkeys(keys.groups) == [b"group/media"]
    assert "nothing was to be changed" in shell.run("operate", "migrate").stdout
