"""Authorities, their certificates as files, and servers behind TLS, for tests."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from tests.chaos.proxy import Proxy


class Authority:
    """An authority that issues certificates; what it writes goes into one folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._ca = trustme.CA(organization_name=name)

    @property
    def file(self) -> str:
        """Its own certificate, which those who trust it need."""
        path = self._folder / f"{self._name}.pem"
        self._ca.cert_pem.write_to_path(str(path))
        return str(path)

    def server(self, *names: str, expires: datetime | None = None, clients: Authority | None = None) -> ssl.SSLContext:
        """The server's side of TLS, with a certificate for 127.0.0.1 or other ``names``.

        With ``clients`` it serves only those who have a certificate of that authority.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certify(context, *names, expires=expires)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            clients._ca.configure_trust(context)
        return context

    def certify(self, context: ssl.SSLContext, *names: str, expires: datetime | None = None) -> None:
        """Give a server's side another certificate, which new connections see."""
        self._ca.issue_cert(*(names or ("127.0.0.1",)), not_after=expires).configure_cert(context)

    def certificate(self, *names: str) -> str:
        """A file with a certificate and its key, for a server at 127.0.0.1 or other ``names``."""
        path = self._folder / f"{self._name}-server.pem"
        self._ca.issue_cert(*(names or ("127.0.0.1",))).private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    def client(self, password: str = "") -> dict[str, str]:
        """A client's certificate and key, encrypted or not, as settings."""
        issued = self._ca.issue_cert("worker@example.org")
        cert, key = (self._folder / f"{self._name}-client.{kind}" for kind in ("crt", "key"))
        issued.cert_chain_pems[0].write_to_path(str(cert))
        pem = issued.private_key_pem.bytes()
        if password:
            loaded = load_pem_private_key(pem, None)
            pem = loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
        key.write_bytes(pem)
        return {"tls_cert": str(cert), "tls_key": str(key)}


@asynccontextmanager
async def terminating(port: int, context: ssl.SSLContext) -> AsyncIterator[Proxy]:
    """A proxy that speaks TLS, in front of a server that does not."""
    proxy = Proxy(port, tls=context)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.aclose()


def settings_for(proxy: Proxy, namespace: str, **changes: Any) -> dict[str, Any]:
    """Settings that lead through a proxy."""
    return {"url": f"rediss://127.0.0.1:{proxy.port}", "namespace": namespace, "lease": 2.0, "grace": 2.0, **changes}
