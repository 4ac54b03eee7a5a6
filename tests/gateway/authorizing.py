"""An authorization server of a test's own: its keys, the address that shows them, and tokens."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
import warnings
from typing import Any

from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ISSUER, AUDIENCE = "https://issuer.example", "https://gateway.example"
REGISTRY = JWSRegistry(algorithms=["RS256", "PS256", "ES256", "Ed25519", "EdDSA", "HS256", "none"])


class Issuer:
    """Signs tokens, and shows its keys as it is told to.

    Attributes:
        answer: what the address of the keys answers instead of them.
        held: cleared while the address does not answer.
        asked: how often the address was asked.
    """

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": RSAKey.generate_key(2048, {"kid": "rsa"}, auto_kid=False),
            "ec": ECKey.generate_key("P-256", {"kid": "ec"}, auto_kid=False),
            "ed": OKPKey.generate_key("Ed25519", {"kid": "ed"}, auto_kid=False),
        }
        self.answer: bytes | None = None
        self.status = 200
        self.held = asyncio.Event()
        self.held.set()
        self.asked = 0
        self.app = Starlette(routes=[Route("/keys", self._keys)])

    def public(self) -> dict[str, Any]:
        """Return the keys as they are shown."""
        found: dict[str, Any] = dict(KeySet([*self.keys.values()]).as_dict(private=False))
        return found

    async def _keys(self, request: Request) -> Response:
        self.asked += 1
        await self.held.wait()
        return Response(json.dumps(self.public()).encode() if self.answer is None else self.answer, self.status)

    def token(self, kid: str = "rsa", alg: str = "RS256", key: Any = None, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a signed token; claims that are None are left out."""
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time.time()) + 600, **claims}
        head = {"alg": alg, "kid": kid, **(header or {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.encode(
                {name: value for name, value in head.items() if value is not None},
                {name: value for name, value in said.items() if value is not None},
                key or self.keys[kid],
                registry=REGISTRY,
            )

    def confused(self) -> str:
        """Return a token that is signed with the public key as if that were a shared secret."""
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "root", "exp": int(time.time()) + 600}
        signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(said)}"
        secret = self.keys["rsa"].as_pem(private=False)
        signature = hmac.digest(secret, signed.encode(), "sha256")
        return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def encoded(part: Any) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any], alg: str = "none") -> str:
    """Return a token without a signature."""
    return f"{encoded({'alg': alg})}.{encoded(claims)}."
