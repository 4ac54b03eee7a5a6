"""Make a gateway's authenticator of what its operator asks for."""

from __future__ import annotations

from pathlib import Path

import msgspec

from toolbus.client.bus import ToolBus
from toolbus.gateway.auth.bearer import BearerAuthenticator
from toolbus.gateway.auth.credentials import Source
from toolbus.gateway.auth.file_tokens import FileTokens
from toolbus.gateway.auth.metadata import Resource
from toolbus.gateway.auth.shared_tokens import SharedTokens
from toolbus.results import ConfigurationError
from toolbus.tokens import Rate


class AuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a gateway's authentication; with none of them, it has none.

    Attributes:
        tokens: a file of tokens, see ``toolbus tokens add --file``.
        shared_tokens: accept the tokens that `toolbus tokens` keeps on the server.
        keys: where the keys are that verify JSON Web Tokens: a URL or a file (JWKS).
        issuer, audiences: what their ``iss`` and ``aud`` must be.
        user_claim, groups_claim, tools_claim, permissions_claim: see ``ClaimMap``.
        rate: how many requests a token may send that has no rate of its own, such as ``100/minute``.
        public_url: the gateway's URL as clients see it.
    """

    tokens: str = ""
    shared_tokens: bool = False
    keys: str = ""
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    user_claim: str = "sub"
    groups_claim: str = ""
    tools_claim: str = ""
    permissions_claim: str = ""
    rate: str = ""
    public_url: str = ""

    @property
    def asked(self) -> bool:
        """True when requests need a token."""
        return bool(self.tokens or self.shared_tokens or self.keys)


def authenticator_of(bus: ToolBus, options: AuthOptions) -> BearerAuthenticator | None:
    """Return the authenticator that the options ask for; None when they ask for none.

    Raises:
        ConfigurationError: a file can't be read, or an option is wrong or missing.
    """
    if (options.issuer or options.audiences) and not options.keys:
        raise ConfigurationError("an issuer or audience is given, but not where the keys are that verify its tokens")
    if not options.asked:
        return None
    rate = Rate.parse(options.rate) if options.rate else None
    sources: list[Source] = []
    if options.tokens:
        sources.append(FileTokens(Path(options.tokens)))
    if options.shared_tokens:
        sources.append(SharedTokens(bus))
    if options.keys:
        sources.append(_web_tokens(options))
    issuers = (options.issuer,) if options.keys else ()
    return BearerAuthenticator(bus, sources, resource=Resource(options.public_url, issuers), rate=rate)


def _web_tokens(options: AuthOptions) -> Source:
    # It loads a library of cryptography, which gateways without such tokens do not need.
    from toolbus.gateway.auth.claims import ClaimMap  # noqa: PLC0415
    from toolbus.gateway.auth.key_set import KeyStore  # noqa: PLC0415
    from toolbus.gateway.auth.web_tokens import WebTokens  # noqa: PLC0415

    claims = ClaimMap(
        issuer=options.issuer,
        audiences=frozenset(options.audiences),
        user=options.user_claim,
        groups=options.groups_claim,
        tools=options.tools_claim,
        permissions=options.permissions_claim,
    )
    return WebTokens(KeyStore(options.keys), claims)
