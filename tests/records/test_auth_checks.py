"""Checks of how requests to an API are authorized."""

from __future__ import annotations

import pytest

from toolbus.bus.values.results import DescriptorError
from toolbus.platform.checks import AUTH, check_source
from toolbus.platform.records import ToolSource

_FIELDS = {
    "apiKey": {"in": "header", "name": "X-Key", "value": "env:KEY"},
    "basic": {"username": "me", "password": "file:/run/secrets/api"},
    "bearer": {"token": "env:TOKEN"},
    "oauth2": {"token_url": "https://example.com/token", "client_id": "me", "client_secret": "env:SECRET", "scope": "read"},
}


def check(**fields: object) -> None:
    check_source(ToolSource(type="remote", url="https://example.com", **fields), "$")


@pytest.mark.parametrize("kind", AUTH)
def test_each_kind_has_its_fields(kind: str) -> None:
    """Each kind of authorization is taken with its fields, and refused without one of them or with a foreign one."""
    auth = {"type": kind, **_FIELDS[kind]}
    check(auth=auth)
    for name in AUTH[kind]:
        with pytest.raises(DescriptorError, match=rf"\$\.auth\.{name}"):
            check(auth={key: value for key, value in auth.items() if key != name})
    with pytest.raises(DescriptorError, match="has no such field"):
        check(auth={**auth, "other": "x"})


@pytest.mark.parametrize(
    "fields",
    [
        {"auth": {"type": "magic"}},
        {"auth": {"type": "bearer", "token": "sk-0123456789abcdefghij"}},
        {"auth": {"type": "apiKey", "in": "body", "name": "k", "value": "env:K"}},
        {"auth": {"type": "apiKey", "in": "header", "name": "Transfer-Encoding", "value": "env:K"}},
        {"auth": {"type": "apiKey", "in": "header", "name": "X Key", "value": "env:K"}},
        {"headers": {"Authorization": "Bearer sk-0123456789abcdefghij{env:X}"}},
        {"headers": {"Authorization": "Bearer {env:X}{file:../x}"}},
    ],
)
def test_secrets_and_nonsense_are_refused(fields: dict[str, object]) -> None:
    """A wrong authorization, or one that holds its secret itself, is refused."""
    with pytest.raises(DescriptorError):
        check(**fields)


def test_a_secret_may_stand_within_a_header() -> None:
    """The place of a secret may follow a word, as headers have it."""
    check(headers={"Authorization": "Bearer {env:TOKEN}", "Cookie": "session={file:/run/secrets/session}"})
