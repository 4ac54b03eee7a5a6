"""``toolbus doctor`` on servers that let in users without a password, and on those that do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.cli.shell import Shell
from toolbus.bus.broker.server.access import ROLES, rights
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.values.urls import without_credentials

CHECK = "no password"


def findings(shell: Shell) -> dict[str, tuple[str, str]]:
    """Return the state and the text of each check."""
    return {each["check"]: (each["state"], each["found"]) for each in shell.json("doctor")}


@pytest.mark.usefixtures("slow")
def test_an_open_server_is_told_under_every_role(shell: Shell, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """As long as the default user is on, roles protect nothing; when it is off, the check is content; without a user, nothing is tried."""
    server = fresh_server()
    shell.environment["TOOLBUS_URL"] = server.url
    namespace = shell.environment["TOOLBUS_NAMESPACE"]
    assert CHECK not in findings(shell)
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "admin", "on", ">root", "~*", "&*", "+@all")
        for role in [name for name, each in ROLES.items() if each.checks]:
            client.execute_command("ACL", "SETUSER", role, "on", ">secret", *rights([role], namespace).rules().split())
            shell.environment["TOOLBUS_URL"] = server.url.replace("redis://", f"redis://{role}:secret@")
            state, found = findings(shell)[CHECK]
            assert state == "warn", role
            assert "may do everything" in found
            assert "`ACL SETUSER default off`" in found
        client.execute_command("AUTH", "admin", "root")
        client.execute_command("ACL", "SETUSER", "default", "off")
    assert findings(shell)[CHECK] == ("ok", "the server refuses users without a password")


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: {"TOOLBUS_PASSWORD_FILE": str(folder / "toolbus.password_file")},
        lambda folder: {"CREDENTIALS_DIRECTORY": str(folder)},
    ],
    ids=["variable", "credential"],
)
def test_a_password_in_a_file_is_left_out_of_the_attempt(
    given: Callable[[Path], dict[str, str]], shell: Shell, fresh_server: Callable[..., EmbeddedServer]
) -> None:
    """A server with one password for all is closed."""
    server = fresh_server(config={"requirepass": "secret"})
    (shell.folder / "toolbus.password_file").write_text("secret")
    shell.environment |= {"TOOLBUS_URL": f"redis://127.0.0.1:{server.port}", **given(shell.folder)}
    assert findings(shell)[CHECK][0] == "ok"


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("redis://host:1", "redis://host:1"),
        ("redis://host:1/0?", "redis://host:1/0?"),
        ("redis://host?password=p", "redis://host"),
        ("redis://user:secret@host:1/2", "redis://host:1/2"),
        ("rediss+sentinel://:secret@a,b/main?sentinel_password=x&password=y", "rediss+sentinel://a,b/main?sentinel_password=x"),
        ("unix:///run/server.sock?username=u&password=p&db=1", "unix:///run/server.sock?db=1"),
    ],
)
def test_credentials_are_taken_out_of_a_url(url: str, bare: str) -> None:
    """A password of Sentinels stays: they are asked in the same way."""
    assert without_credentials(url) == bare
