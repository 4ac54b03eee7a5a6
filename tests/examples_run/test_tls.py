"""The page on TLS: its certificates are good ones, and its commands work with them."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.examples_run.desk import Desk
from tests.examples_run.pages import EXAMPLES, commands
from tests.listening import Listening
from tests.tls import terminating

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")]

PAGE = commands(EXAMPLES / "tls" / "README.md")
PORT = "6380"


@pytest.fixture(scope="module")
def certificates(desk: Desk) -> Path:
    """The folder that the page's first command makes."""
    desk.run(PAGE[0])
    return desk.folder / "certificates"


@asynccontextmanager
async def server(desk: Desk, certificates: Path) -> AsyncIterator[str]:
    """Speak TLS in front of the server, as Valkey does by default: a client must have a certificate; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    async with terminating(int(desk.url.rpartition(":")[2]), context) as proxy:
        yield str(proxy.port)


@pytest.mark.usefixtures("slow")
async def test_an_agent_and_a_worker_speak_tls(desk: Desk, certificates: Path) -> None:
    """With the page's settings a worker serves, the doctor finds nothing wrong, and calls are answered, in a namespace of their own."""
    exports = "; ".join(each for each in PAGE if each.startswith("export "))
    worker, *others = (each for each in PAGE if each.startswith(("toolbus ", "python ")))
    async with server(desk, certificates) as port:
        settings = f"export TOOLBUS_NAMESPACE=tls; {exports.replace(PORT, port)}; "

        def use() -> list[str]:
            with desk.running(f"sh -c '{settings} exec {worker}'", "service.registered"):
                return [desk.run(settings + each) for each in others]

        _, called, answered = await asyncio.to_thread(use)
    assert "R61: 16 free seats." in called
    assert "Take R601" in answered


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("without", "told"), [("TOOLBUS_TLS_CA", "TOOLBUS_TLS_CA"), ("TOOLBUS_TLS_CERT TOOLBUS_TLS_KEY", "TOOLBUS_TLS_CERT")]
)
async def test_what_is_missing_is_said(without: str, told: str, desk: Desk, certificates: Path) -> None:
    """Without a setting a command ends with a line that names it."""
    exports = "; ".join(each for each in PAGE if each.startswith("export "))
    async with server(desk, certificates) as port:
        command = f"{exports.replace(PORT, port)}; unset {without}; ! toolbus tools"
        printed = await asyncio.to_thread(desk.run, command)
    assert told in printed
    assert len(printed.splitlines()) == 1


def test_keys_are_for_their_owner_only(certificates: Path) -> None:
    """Nobody else of the machine reads them."""
    keys = sorted(certificates.glob("*.key"))
    assert [key.stem for key in keys] == ["ca", "client", "server"]
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)


async def test_certificates_pass_the_strictest_check(certificates: Path) -> None:
    """Python checks certificates strictly by default from 3.13 on."""
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificates / "server.crt", certificates / "server.key")

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    async with Listening(close, tls=serving) as listening:
        _, writer = await asyncio.open_connection("127.0.0.1", listening.port, ssl=context, server_hostname="localhost")
        writer.close()
