"""Commands under the roles of their users: the table of the guide is kept, and a refusal says which role is missing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import redis

from tests.cli.shell import Shell
from toolbus import Worker, tool
from toolbus.bus.broker.server.access import ROLES, rights

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "roles.md"
As = Callable[..., AbstractContextManager[None]]

# The rest of each command; `top` shows one picture when it writes to a file.
REST = {"see describe": ("roles_echo",), "see top": ("--once",)}


@tool(service="roles-cli", effect="read")
def roles_echo() -> str:
    """Be listed."""
    return "here"


def table() -> dict[str, str]:
    """Return the guide's roles, and what each is for."""
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE.read_text("utf-8").partition("## Make users")[0], re.MULTILINE))


def watching() -> list[str]:
    """Return the commands that the guide names for the role ``monitor``."""
    named = re.findall(r"`([\w ]+)`", table()["monitor"].partition(":")[0])
    return [each.removeprefix("toolbus ") for each in named]


@pytest.fixture
def under(shell: Shell) -> Iterator[As]:
    """Run the shell's commands as a user with these roles."""
    url, namespace = shell.environment["TOOLBUS_URL"], shell.environment["TOOLBUS_NAMESPACE"]
    made: list[str] = []

    @contextmanager
    def user(*roles: str) -> Iterator[None]:
        name = f"{namespace}-{'-'.join(roles)}"
        made.append(name)
        with redis.Redis.from_url(url) as client:
            client.execute_command("ACL", "SETUSER", name, "on", ">secret", *rights(roles, namespace).rules().split())
        shell.environment["TOOLBUS_URL"] = url.replace("redis://", f"redis://{name}:secret@")
        yield
        shell.environment["TOOLBUS_URL"] = url

    yield user
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "DELUSER", *made, "nobody")


def test_the_guide_has_every_role() -> None:
    """And names none that there is not."""
    assert set(table()) == set(ROLES)
    assert len(watching()) > 5


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("role", "command"), [*(("monitor", each) for each in watching()), ("approver", "tools"), ("approver", "see describe")]
)
async def test_the_commands_of_the_guide_work_under_monitor(
    shell: Shell, under: As, server: str, namespace: str, role: str, command: str
) -> None:
    """Each one does its work with the rights of the role alone; an approver has the tools listed, too."""
    async with Worker(roles_echo, url=server, namespace=namespace):
        with under(role):
            done = await asyncio.to_thread(shell.run, *command.split(), *REST.get(command, ()))
    assert done.returncode == 0, done.stderr
    # Confirmations have the arguments of calls: `top` goes without them.
    refused = [line for line in done.stderr.splitlines() if "NOPERM" in line and not line.startswith("could not be read: confirmations: ")]
    assert refused == []
    if command in {"tools", "see describe", "see services"}:
        assert "roles_echo" in done.stdout or "roles-cli" in done.stdout


def test_options_of_listings_work_for_a_monitor(shell: Shell, under: As) -> None:
    """Tools that nobody serves, definitions, and running calls."""
    with under("monitor"):
        for words in (("tools", "--all"), ("tools", "--format", "openai"), ("see", "calls", "--running")):
            assert shell.run(*words).returncode == 0


def test_a_refusal_names_the_missing_role(shell: Shell, under: As) -> None:
    """An agent that lists services is told who may, and who it is."""
    with under("agent"):
        done = shell.run("secure", "tokens", "list")
    assert done.returncode == 1
    assert "it needs the role gateway or operator (this user is: agent); " in done.stderr
    assert done.stderr.count("\n") == 1 or "server.no_permission" in done.stderr


def test_a_worker_with_the_role_of_an_agent_is_told_its_own(shell: Shell, under: As) -> None:
    """The advice is the role that it lacks, and not to set its rights again, which are whole."""
    (shell.folder / "echo.py").write_text(
        'from toolbus import tool\n\n@tool(effect="read")\ndef echo() -> str:\n    """Echo."""\n    return ""\n'
    )
    with under("agent"):
        done = shell.run("worker", "echo.py")
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert "it needs the role worker" in told
    assert "(this user is: agent); " in told
    assert "older than this release" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("see", "services"),
        ("tools",),
        ("call", "other"),
        ("secure", "pins", "list"),
    ],
    ids=" ".join,
)
def test_a_wrong_namespace_is_told(shell: Shell, under: As, words: tuple[str, ...]) -> None:
    """A user of one namespace that asks in another one reads which setting is wrong."""
    with under("operator"):
        done = shell.run(*words, "--namespace", "elsewhere")
    assert done.returncode == 1
    assert "has no rights in the namespace 'elsewhere': set TOOLBUS_NAMESPACE" in done.stderr
    assert "Traceback" not in done.stderr
