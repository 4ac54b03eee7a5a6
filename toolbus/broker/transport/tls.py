"""TLS: the certificates of a connection, and what to do when it fails because of them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolbus.settings import PREFIX, Settings

_FAILURE = re.compile(r"\[(?:SSL|X509)(?:: (?P<reason>\w+))?\] (?P<text>.*?)(?= \(_ssl\.c:|$)")
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE", "HTTP_REQUEST"})


class TlsFiles(NamedTuple):
    """The PEM files of one process: whom it trusts, and who it is. Empty ones are not given; a key may stand in the certificate's file."""

    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings) -> TlsFiles:
        """Return the files that the settings name."""
        return cls(settings.tls_ca, settings.tls_cert, settings.tls_key)

    def options(self, url_speaks_tls: bool) -> dict[str, str]:
        """Return the options with which redis-py uses them.

        Raises:
            ValueError: they would not be used, or are not whole.
        """
        given = [f"{PREFIX}TLS_{name.upper()}" for name, path in self._asdict().items() if path]
        if given and not url_speaks_tls:
            raise ValueError(f"it does not speak TLS, though {' and '.join(given)} {_are(given)} set; write rediss:// for redis://")
        if self.key and not self.cert:
            raise ValueError(f"{PREFIX}TLS_KEY is set and {PREFIX}TLS_CERT is not; a key is nothing without its certificate")
        options = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}
        return {name: path for name, path in options.items() if path}


def unreadable(options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the files that a connection's options name, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca, cert, key = (options.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
    try:
        if ca:
            context.load_verify_locations(ca)
    except OSError as error:
        return f"the authority's certificate {ca!r} can't be read: {_reason(error)}"
    try:
        if cert or key:
            context.load_cert_chain(cert or "", key, options.get("ssl_password") or "")
    except OSError as error:
        beside = f" with the key {key!r}" if key else ""
        return f"the client certificate {cert!r}{beside} can't be read: {_reason(error)}"
    return None


def explain(text: str) -> str | None:
    """Return what an error's text says of TLS, with advice; None when it is about something else."""
    found = _FAILURE.search(text)
    if found is None:
        return None
    reason, words = found["reason"] or "", found["text"].rstrip(".")
    words = words.removeprefix("certificate verify failed: ")
    if reason == "CERTIFICATE_VERIFY_FAILED":
        if "mismatch" in words:
            return f"the server's certificate is for another host ({words}); connect to a name that the certificate has"
        if "expired" in words or "not yet valid" in words:
            return f"the server's certificate is not valid now ({words}); renew it at the server, or look at the clocks"
        return (
            f"the server's certificate is not trusted ({words}); set {PREFIX}TLS_CA to the file with the certificate of the authority"
            " that issued it"
        )
    if reason in _NOT_TLS:
        return f"the server does not speak TLS at this port ({words}); write redis:// for rediss://, or name the TLS port"
    if "ALERT" in reason and ("CERT" in reason or "CA" in reason or "HANDSHAKE" in reason):
        return f"the server refused this client's certificate, or the lack of one ({words}); set {PREFIX}TLS_CERT and {PREFIX}TLS_KEY"
    return f"TLS failed: {words}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).partition(" (_ssl.c:")[0]


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
