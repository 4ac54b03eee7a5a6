"""Gateways as processes that ask for tokens."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.gateway.running import client_of
from tests.gateway.served import Site
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio


def command(site: Site, *words: str) -> str:
    """Return the output of a command, which must succeed."""
    program = site.start(*words)
    output, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    return output.strip()


def headers(token: str) -> dict[str, str]:
    """Return the headers of a request with a token."""
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.usefixtures("slow")
async def test_tokens_of_the_server_count_at_every_gateway(own_site: Site) -> None:
    """A token that a command makes is accepted by two gateways, with its user and tools, and refused by both once it is revoked."""
    site = own_site
    site.worker()
    urls = [site.gateway("--shared-tokens")[1] for _ in range(2)]
    token = command(site, "secure", "tokens", "add", "ci", "--user", "acme", "--tool", "echo")
    try:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

            async def status(url: str, given: str) -> int:
                return (await client.get(f"{url}/v1/tools?format=openai", headers=headers(given) if given else {})).status_code

            for url in urls:
                assert await status(url, "") == 401
                assert (await client.get(f"{url}/health")).status_code == 200
                assert await status(url, token) == 200

                async def listed(url: str = url) -> bool:
                    found = (await client.get(f"{url}/v1/tools?format=openai", headers=headers(token))).json()
                    return [each["function"]["name"] for each in found] == ["echo"]

                await eventually(listed, timeout=60.0, interval=0.1)
                call = [
                    {"id": "c", "name": "echo", "arguments": {"text": "hi"}},
                    {"id": "d", "name": "add", "arguments": {"left": 1, "right": 2}},
                ]
                answered = (await client.post(f"{url}/v1/tool_calls", json=call, headers=headers(token))).json()
                assert [each["success"] for each in answered["calls"]] == [True, False]
                run = await client.post(
                    f"{url}/run_tool", json={"tool_id": "add", "params": {"left": 1, "right": 2}}, headers=headers(token)
                )
                assert run.status_code == 404
            command(site, "secure", "tokens", "revoke", "ci")
            for url in urls:

                async def refused(url: str = url) -> bool:
                    return await status(url, token) == 401

                await eventually(refused, timeout=60.0, interval=0.2)
    finally:
        site.start("secure", "tokens", "revoke", "ci").communicate(timeout=60)


@pytest.mark.usefixtures("slow")
async def test_tokens_of_a_file(own_site: Site, tmp_path: Path) -> None:
    """``--tokens FILE`` accepts the tokens that a command wrote, also those that come later, and no log has anything secret."""
    site = own_site
    path = str(tmp_path / "tokens.json")
    first = command(site, "secure", "tokens", "add", "one", "--file", path)
    program, url = site.gateway("--tokens", path, TOOLBUS_LOG_LEVEL="debug")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        assert (await client.get(f"{url}/v1/tools", headers=headers(first))).status_code == 200
        second = command(site, "secure", "tokens", "add", "two", "--file", path)

        async def accepted() -> bool:
            return (await client.get(f"{url}/v1/tools", headers=headers(second))).status_code == 200

        await eventually(accepted, timeout=60.0, interval=0.2)
        assert (await client.get(f"{url}/v1/tools", headers={**headers(first + "x"), "X-Request-Id": "mine-7"})).status_code == 401
    program.terminate()
    _, log = program.communicate(timeout=60)
    assert "mine-7" in log
    for secret in (first, second):
        assert secret[-20:] not in log
    for line in log.splitlines():
        json.loads(line)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "without tokens"),
        (("--tokens", "absent.json"), "can't be read"),
        (("--jwt-keys", "http://issuer.example/keys", "--jwt-issuer", "i", "--jwt-audience", "a"), "https"),
        (("--jwt-keys", "https://issuer.example/keys"), "audience"),
        (("--jwt-issuer", "i"), "keys"),
        (("--shared-tokens", "--rate", "lots"), "rate"),
        (("--shared-tokens", "--open"), "give one of them"),
        (("--cors", "app.example"), "site"),
        (("--shared-tokens", "--public-url", "tools.example"), "URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_would_let_anybody_in_is_refused(own_site: Site, words: tuple[str, ...], said: str) -> None:
    """Options that are wrong or contradict each other end the command with what to do."""
    program = own_site.start("serve", "--port", "0", *words)
    _, errors = program.communicate(timeout=60)
    assert program.returncode in {1, 2}
    assert said in errors
    assert "Traceback" not in errors


async def test_mcp_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is no bare 404."""
    monkeypatch.setattr("toolbus.edges.gateway.app.find_spec", lambda name: None)
    async with ToolBus("memory://") as bus, client_of(bus) as client:
        answer = await client.post("/mcp", json={})
        assert (answer.status_code, answer.json()["title"]) == (501, "not_installed")
        assert "toolbus[mcp]" in answer.json()["detail"]
