"""JSON Web Tokens of an authorization server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from tests.client.executing import chat, find_docs, info, repeat
from tests.gateway.authorizing import AUDIENCE, ISSUER, Issuer, encoded, unsigned
from tests.gateway.running import client_of, listening
from tests.servers import eventually
from toolbus import ConfigurationError, ToolBus, Worker
from toolbus.edges.gateway.auth.options import AuthOptions, BearerAuthenticator, authenticator_of
from toolbus.edges.gateway.auth.web_tokens import FRESH, STALE, ClaimMap, KeyStore, web_tokens

pytestmark = pytest.mark.anyio

INFO = [chat("a", "info", {"ids": []}), chat("b", "repeat", {"text": "x"})]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Clock:
    """The clock of the keys."""
    return Clock()


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """An authorization server."""
    made = Issuer()
    yield made
    made.held.set()


@asynccontextmanager
async def gateway(namespace: str, issuer: Issuer, clock: Clock, *, within: float = 5.0, **claims: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of a gateway that accepts the tokens of an issuer."""
    mapped = ClaimMap(issuer=ISSUER, audiences=frozenset({AUDIENCE}), **claims)
    async with (
        listening(issuer.app) as address,
        Worker([repeat, info, find_docs], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
    ):
        keys = KeyStore(f"{address}/keys", clock=clock, within=within)
        async with client_of(bus, BearerAuthenticator(bus, [web_tokens(keys, mapped)])) as client:
            yield client
        issuer.held.set()
        await keys.aclose()


async def asked(client: httpx.AsyncClient, token: str) -> httpx.Response:
    """Send a message of calls with a token."""
    return await client.post("/v1/tool_calls", json=INFO, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize(("kid", "alg"), [("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "Ed25519"), ("ed", "EdDSA")])
async def test_the_subject_is_the_user(namespace: str, issuer: Issuer, clock: Clock, kid: str, alg: str) -> None:
    """A token that the issuer signed stands for its subject; its keys are fetched once."""
    async with gateway(namespace, issuer, clock) as client:
        for _ in range(3):
            answered = await asked(client, issuer.token(kid, alg))
            assert answered.status_code == 200, answered.text
            assert answered.json()["messages"][0]["content"] == "[] for alice"
        assert issuer.asked == 1


async def test_claims_say_user_groups_and_permissions(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """Claims may be nested or have URLs as names; one that is left out allows nothing."""
    claims = {"user": "https://example.com/tenant", "groups": "realm.roles", "permissions": "scope"}
    async with gateway(namespace, issuer, clock, **claims) as client:
        said: dict[str, Any] = {"https://example.com/tenant": "acme", "realm": {"roles": ["docs"]}, "scope": "openid toolbus:call"}
        answered = (await asked(client, issuer.token(**said))).json()
        assert answered["messages"][0]["content"] == "[] for acme"
        assert [each["success"] for each in answered["calls"]] == [True, False]
        assert (await asked(client, issuer.token(**{**said, "scope": "openid toolbus:observe"}))).status_code == 403
        assert (await asked(client, issuer.token(**{**said, "scope": None}))).status_code == 403
        without = (await asked(client, issuer.token(**{**said, "realm": "none"}))).json()
        assert [each["success"] for each in without["calls"]] == [False, False]
        assert (await asked(client, issuer.token(scope="toolbus:call"))).status_code == 401


def _forged(issuer: Issuer) -> dict[str, str]:
    stranger = RSAKey.generate_key(2048, {"kid": "rsa"}, auto_kid=False)
    good, later = issuer.token(), time.time() + 600
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": later}
    head, body, signature = good.split(".")
    return {
        "another's key": issuer.token(key=stranger),
        "the public key as a secret": issuer.confused(),
        "a secret": issuer.token(alg="HS256", key=OctKey.import_key("k" * 32)),
        "no signature": unsigned(claims),
        "none in capitals": unsigned(claims, "NONE"),
        "a signature that is cut off": f"{head}.{body}.",
        "other claims": f"{head}.{unsigned(claims).split('.')[1]}.{signature}",
        "another type of key": issuer.token("ec", "ES256", header={"kid": "rsa"}),
        "an unknown key": issuer.token(header={"kid": "other"}),
        "a key of its own": issuer.token(key=stranger, header={"jwk": stranger.as_dict(private=False), "kid": "mine"}),
        "an address of its own": issuer.token(key=stranger, header={"jku": "http://127.0.0.1:9/keys", "kid": "mine"}),
        "a critical extension": f"{encoded({'alg': 'RS256', 'kid': 'rsa', 'crit': ['b64'], 'b64': False})}.{body}.{signature}",
        "an id token": issuer.token(header={"typ": "logout+jwt"}),
        "expired": issuer.token(exp=int(time.time()) - 60),
        "no end": issuer.token(exp=None),
        "an end that is a text": issuer.token(exp="later"),
        "an end that is no number": issuer.token(exp=float("inf")),
        "a flag as its end": issuer.token(exp=True),
        **{f"a huge {name}": issuer.token(**{name: 10**400}) for name in ("exp", "nbf", "iat")},
        "not valid yet": issuer.token(nbf=int(time.time()) + 600),
        "another audience": issuer.token(aud="https://other.example"),
        "no audience": issuer.token(aud=None),
        "an audience that is an object": issuer.token(aud={AUDIENCE: True}),
        "a part of the audience": issuer.token(aud=AUDIENCE[:-1]),
        "another issuer": issuer.token(iss="https://issuer.example.evil"),
        "no issuer": issuer.token(iss=None),
        "no subject": issuer.token(sub=None),
        "an empty subject": issuer.token(sub=""),
        "a subject of controls": issuer.token(sub="a\nb"),
        "a long subject": issuer.token(sub="a" * 300),
        "a subject that is a list": issuer.token(sub=["alice"]),
        "no header": f".{body}.{signature}",
        "a header that is no JSON": f"AAAA.{body}.{signature}",
        "nested": f"{encoded([[[]]])}.{body}.{signature}",
    }


@pytest.mark.usefixtures("slow")
async def test_forged_tokens_are_refused(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """A token that the issuer did not sign, that is over, or that is for others is refused; the good one beside it counts."""
    async with gateway(namespace, issuer, clock) as client:
        for kind, token in _forged(issuer).items():
            refused = await asked(client, token)
            assert refused.status_code == 401, (kind, refused.text)
            assert 'error="invalid_token"' in refused.headers["www-authenticate"], kind
            assert (await asked(client, issuer.token())).status_code == 200, kind


@pytest.mark.usefixtures("slow")
async def test_rotated_keys(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """A new key is fetched when its first token comes, and tokens of a key that is gone are refused from then on."""
    async with gateway(namespace, issuer, clock) as client:
        old = issuer.token()
        assert (await asked(client, old)).status_code == 200
        del issuer.keys["rsa"]
        issuer.keys["next"] = RSAKey.generate_key(2048, {"kid": "next"}, auto_kid=False)
        clock.ahead += 11
        assert (await asked(client, issuer.token("next"))).status_code == 200
        assert (await asked(client, old)).status_code == 401
        assert issuer.asked == 2


async def test_unknown_keys_make_few_requests(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """Tokens with made-up ids of keys do not make the gateway ask for the keys each time."""
    async with gateway(namespace, issuer, clock) as client:
        assert (await asked(client, issuer.token())).status_code == 200
        clock.ahead += 11
        forged = [asked(client, issuer.token(header={"kid": f"made-up-{number}"})) for number in range(20)]
        assert {each.status_code for each in await asyncio.gather(*forged)} == {401}
        assert issuer.asked == 2


@pytest.mark.usefixtures("slow")
async def test_an_address_that_hangs_stops_nobody_who_is_known(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """Without keys the answer is 503 within the time limit; with keys that were fetched before, tokens go on being accepted."""
    async with gateway(namespace, issuer, clock, within=0.5) as client:
        issuer.held.clear()
        refused = await asked(client, issuer.token())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        issuer.held.set()
        clock.ahead += 11
        assert (await asked(client, issuer.token())).status_code == 200
        issuer.held.clear()
        clock.ahead += FRESH + 1
        assert (await asked(client, issuer.token(sub="bob"))).status_code == 200


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("way", ["hangs", "fails"])
async def test_a_new_key_that_can_not_be_fetched_is_no_bad_token(namespace: str, issuer: Issuer, clock: Clock, way: str) -> None:
    """While the address of the keys does not answer, a token of an unknown key is 503 with a time to come back, then accepted."""
    async with gateway(namespace, issuer, clock, within=0.5) as client:
        assert (await asked(client, issuer.token())).status_code == 200
        issuer.keys["next"] = RSAKey.generate_key(2048, {"kid": "next"}, auto_kid=False)
        if way == "hangs":
            issuer.held.clear()
        else:
            issuer.status = 500
        clock.ahead += 11
        for _ in range(2):
            refused = await asked(client, issuer.token("next"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert (await asked(client, issuer.token())).status_code == 200
        issuer.held.set()
        issuer.status = 200
        clock.ahead += 11
        assert (await asked(client, issuer.token("next"))).status_code == 200


BROKEN = {
    "no JSON": b"<html>",
    "a list": b"[]",
    "no keys": b"{}",
    "keys that are none": b'{"keys": [7, {}, {"kty": "RSA", "kid": "rsa"}]}',
    "a shared secret": json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "rsa"}]}).encode(),
    "too much": b" " * 2_000_000,
    "nested": b"[" * 100_000,
    "not UTF-8": b'{"keys": "\xff"}',
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_bad_answers_replace_no_keys(namespace: str, issuer: Issuer, clock: Clock, answer: bytes) -> None:
    """Keys that can't be read, or an error, leave those that are known, for a day."""
    async with gateway(namespace, issuer, clock) as client:
        issuer.answer = answer
        assert (await asked(client, issuer.token())).status_code == 503
        issuer.answer = None
        clock.ahead += 11
        assert (await asked(client, issuer.token())).status_code == 200
        issuer.answer = answer
        clock.ahead += FRESH + 1
        before = issuer.asked
        assert (await asked(client, issuer.token(sub="bob"))).status_code == 200
        await eventually(lambda: issuer.asked > before, timeout=20.0)
        assert (await asked(client, issuer.token(sub="carol"))).status_code == 200
        clock.ahead += STALE
        assert (await asked(client, issuer.token(sub="dave"))).status_code == 503


async def test_a_redirect_is_not_followed(namespace: str, issuer: Issuer, clock: Clock) -> None:
    """An address that answers with another status has no keys."""
    async with gateway(namespace, issuer, clock) as client:
        issuer.status = 302
        assert (await asked(client, issuer.token())).status_code == 503


async def test_keys_of_a_file(namespace: str, issuer: Issuer, tmp_path: Any) -> None:
    """The keys may stand in a file, for a gateway that can't reach the issuer."""
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(issuer.public()))
    options = AuthOptions(keys=str(path), issuer=ISSUER, audiences=(AUDIENCE,))
    async with ToolBus("memory://", namespace=namespace) as bus, client_of(bus, authenticator_of(bus, options)) as client:
        assert (await asked(client, issuer.token())).status_code == 200
        metadata = (await client.get("/.well-known/oauth-protected-resource/mcp")).json()
        assert metadata["authorization_servers"] == [ISSUER]
        assert metadata["resource"].endswith("/mcp")


def test_options_that_would_accept_anything_are_refused() -> None:
    """Keys are fetched by https, and tokens need an issuer and an audience."""
    with pytest.raises(ConfigurationError, match="https"):
        KeyStore("http://issuer.example/keys")
    for given in ({"issuer": "", "audiences": frozenset({"a"})}, {"issuer": "i", "audiences": frozenset[str]()}):
        with pytest.raises(ConfigurationError, match="audience"):
            ClaimMap(**given)
