"""``toolbus doctor --deep`` as operators run it: on a good server, and with users of few rights."""

from __future__ import annotations

import pytest
import redis

from tests.cli.shell import Shell
from toolbus.bus.broker.server.access import rights


def _as(shell: Shell, *roles: str) -> str:
    """Make the shell's user one with these roles; return its name."""
    url, namespace = shell.environment["TOOLBUS_URL"], shell.environment["TOOLBUS_NAMESPACE"]
    user = f"{namespace}-{'-'.join(roles)}"
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", *rights(roles, namespace).rules().split())
    shell.environment["TOOLBUS_URL"] = url.replace("redis://", f"redis://{user}:secret@")
    return user


def _without(shell: Shell, url: str, user: str) -> None:
    shell.environment["TOOLBUS_URL"] = url
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "DELUSER", user)


@pytest.mark.usefixtures("slow")
def test_a_good_deployment_passes_every_trial(shell: Shell) -> None:
    """Calls, a stream, a cancellation and a worker's death end as they must, and neither a service nor a recent call stays."""
    findings = {each["check"]: each for each in shell.json("doctor", "--deep")}
    for trial in ("round trip", "call", "calls at once", "stream", "cancellation", "lease"):
        assert findings[trial]["state"] in {"ok", "warn"}, findings[trial]
    assert "500 pieces whole" in findings["stream"]["found"]
    assert shell.json("see", "services") == []
    assert shell.json("see", "calls") == []


@pytest.mark.usefixtures("slow")
def test_the_rights_of_an_agent_and_a_worker_are_enough(shell: Shell) -> None:
    """The trials run under the least rights that are documented."""
    url = shell.environment["TOOLBUS_URL"]
    user = _as(shell, "agent", "worker")
    try:
        findings = {each["check"]: each for each in shell.json("doctor", "--deep")}
    finally:
        _without(shell, url, user)
    assert findings["role"]["found"] == "agent and worker"
    assert findings["lease"]["state"] == "ok", findings["lease"]


@pytest.mark.usefixtures("slow")
def test_a_user_without_rights_is_told(shell: Shell) -> None:
    """A monitor can't serve: the trial says which right it lacks, in one line."""
    url = shell.environment["TOOLBUS_URL"]
    user = _as(shell, "monitor")
    try:
        done = shell.run("doctor", "--deep")
    finally:
        _without(shell, url, user)
    assert done.returncode == 1
    assert "`toolbus secure acl`" in done.stdout
    assert "Traceback" not in done.stderr
