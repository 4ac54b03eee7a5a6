"""Options of ``serve`` that say who may use the gateway."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_ENV = "TOOLBUS_GATEWAY_"
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--tokens", "tokens", {"type": click.Path(), "help": "File of bearer tokens, see `toolbus tokens add --file`."}),
    ("--shared-tokens", "shared_tokens", {"is_flag": True, "help": "Accept the tokens that `toolbus tokens` keeps on the server."}),
    ("--jwt-keys", "keys", {"metavar": "URL|FILE", "help": "Keys that verify JSON Web Tokens (JWKS)."}),
    ("--jwt-issuer", "issuer", {"help": "What their `iss` must be."}),
    ("--jwt-audience", "audiences", {"multiple": True, "help": "What their `aud` must have (may be repeated)."}),
    ("--jwt-user", "user_claim", {"default": "sub", "show_default": True, "help": "The claim with the user."}),
    ("--jwt-groups", "groups_claim", {"help": "The claim with the groups of tools; without it all groups."}),
    ("--jwt-tools", "tools_claim", {"help": "The claim with the names of tools; without it all tools."}),
    ("--jwt-permissions", "permissions_claim", {"help": "The claim with permissions, such as scope; without it, to call."}),
    ("--rate", "rate", {"help": "Most requests of a token that has no rate of its own, such as 100/minute."}),
    ("--public-url", "public_url", {"help": "The gateway's URL as clients see it."}),
    ("--cors", "origins", {"multiple": True, "metavar": "ORIGIN", "help": "A site whose pages may use the gateway (may be repeated)."}),
)


def access_options(function: F) -> F:
    """Add the options, which the function gets as one dictionary, ``access``."""
    names = [name for _, name, _ in _OPTIONS]

    @wraps(function)
    def collected(*args: Any, **given: Any) -> Any:
        access = {name: given.pop(name) for name in names}
        return function(*args, access={name: value for name, value in access.items() if value is not None}, **given)

    made: Any = collected
    for option, name, about in reversed(_OPTIONS):
        variable = f"{_ENV}{option.removeprefix('--').replace('-', '_').upper()}"
        made = click.option(option, name, envvar=variable, **about)(made)
    found: F = made
    return found
