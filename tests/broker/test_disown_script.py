"""The script that gives sessions up: what each leaves at the server."""

from __future__ import annotations

import pytest

from tests.broker.conftest import ScriptPlace
from toolbus.bus.broker.server import scripts


@pytest.mark.parametrize("owner", ["mine", "other"])
@pytest.mark.parametrize(("state", "left"), [("closed", (None, False)), ("lost", (b"~", True)), ("kept", (None, True))])
def test_a_session_is_given_up_by_its_owner_alone(
    script_place: ScriptPlace, owner: str, state: str, left: tuple[bytes | None, bool]
) -> None:
    """A snapshot goes with what its caller closed, and with nothing else; the next worker is told of what is lost."""
    redis, keys = script_place.redis, script_place.keys
    session, snapshot = keys.session("pool", "0" * 32), keys.snapshot("pool", "0" * 32)
    redis.set(session, owner, ex=60)
    redis.hset(snapshot, mapping={"t": "token", "d": "{}"})
    redis.expire(snapshot, 60)
    given = redis.eval(scripts.DISOWN.source, 2, session, snapshot, "mine", state)
    found = redis.get(session), bool(redis.exists(snapshot))
    assert (given, found) == ((1, left) if owner == "mine" else (0, (b"other", True)))
    assert redis.ttl(session) != -1
