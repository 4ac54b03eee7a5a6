"""``toolbus agent --conversation`` and ``toolbus operate conversations`` as processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.agent.endpoint import Canned, calls, endpoint, says
from tests.agent.test_command import environment, run, tools
from tests.forking import ForkServer

pytestmark = pytest.mark.anyio


async def test_a_kept_conversation_from_the_terminal(server: str, namespace: str, forks: ForkServer) -> None:
    """A question that failed is finished without it being said again, and the answer told again; operators see, and delete."""
    broken = Canned(b'{"error": {"message": "no"}}', status=400, kind="application/json")
    async with tools(server, namespace), endpoint([calls(("recite", {"lines": 2})), broken, says("That", " was it.")]) as model:
        place = (forks, model.url, server, namespace)
        code, out, err = await run(*place, "a poem?", "--conversation", "c 1", "--user", "ann")
        assert (code, out) == (1, ""), err
        code, out, err = await run(*place, "--conversation", "c 1", "--user", "ann")
        assert (code, out) == (0, "That was it.\n"), err
        code, out, err = await run(*place, "--conversation", "c 1", "--user", "ann", "--output", "json")
        assert json.loads(out) == {"text": "That was it.", "reason": "answered", "turns": 2, "calls": 1, "failed": 0}
        code, out, err = await run(*place, "--conversation", "c 1")
        assert (code, err) == (1, "toolbus: there is no conversation 'c 1'; begin it with a QUESTION\n")
        assert len(model.bodies) == 3
        lines = [line.split() for line in (await operate(forks, server, namespace, "list"))[1].splitlines()]
        assert [lines[0][:3], lines[1][:4]] == [["ID", "USER", "RECORDS"], ["c", "1", "ann", "4"]]
        code, out, err = await operate(forks, server, namespace, "show", "c 1", "--user", "ann")
        assert [line.split()[3] for line in out.splitlines()] == ["question", "reply", "results", "reply"], err
        assert "\x1b" not in out
        code, out, err = await operate(forks, server, namespace, "show", "c 1", "--user", "ann", "--output", "json")
        assert json.loads(out)[0]["record"] == {"type": "question", "text": "a poem?", "key": ""}
        for words, said in (
            (("rm", "c 1", "--yes"), 1),
            (("rm", "c 1", "--user", "ann", "--yes"), 0),
            (("show", "c 1", "--user", "ann"), 1),
        ):
            code, out, err = await operate(forks, server, namespace, *words)
            assert code == said, (words, out, err)


@pytest.mark.parametrize(
    "words", [(), ("--conversation", "c", "--idempotency-key", "k"), ("q", "--idempotency-key", "k"), ("--conversation", "c", "--walk")]
)
async def test_impossible_options_are_mistakes_of_usage(server: str, forks: ForkServer, words: tuple[str, ...]) -> None:
    """Options that need a question or a conversation say so, before anything is asked."""
    code, _, err = await run(forks, "http://127.0.0.1:1/v1", server, "n", *words)
    assert (code, "QUESTION" in err) == (2, True)


@pytest.mark.parametrize("option", ["--conversation", "--idempotency-key"])
async def test_empty_names_are_mistakes_of_usage(server: str, forks: ForkServer, option: str) -> None:
    """An empty id or key, as of a variable that is not set, is refused instead of keeping nothing."""
    code, _, err = await run(forks, "http://127.0.0.1:1/v1", server, "n", "question", "--conversation", "c", option, "")
    assert (code, f"{option} is empty" in err) == (2, True), err


async def operate(forks: ForkServer, url: str, namespace: str, *words: str) -> tuple[int, str, str]:
    """Run a command about conversations."""
    chosen = environment("http://127.0.0.1:1", url, namespace, {})
    done = await asyncio.to_thread(forks.run, "-m", "toolbus", "operate", "conversations", *words, folder=Path.cwd(), environment=chosen)
    return done.returncode, done.stdout, done.stderr
