"""From a URL to connections: redis-py opens, authenticates and speaks TLS; here its errors become ours."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import hiredis
import msgspec
import redis
from redis.asyncio.connection import parse_url

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.transport import clients
from toolbus.bus.broker.transport.command import info_fields
from toolbus.bus.broker.transport.discovery import (
    BySentinel,
    Discovery,
    InCluster,
    Node,
    OfProcess,
    PasswordUnread,
    read_password,
    speaks_tls,
)
from toolbus.bus.values.results import (
    BrokerError,
    BrokerUnavailable,
    ConfigurationError,
    CredentialsRefused,
    EnvelopeError,
    UnsupportedServer,
)
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.bus.values.urls import check_url, redact

_FAILURE = re.compile(r"\[(?:SSL|X509)(?:: (?P<reason>\w+))?\] (?P<text>.*?)(?= \(_ssl\.c:|$)")
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE", "HTTP_REQUEST"})


def tls_options(files: Mapping[str, str], url_speaks_tls: bool) -> dict[str, str]:
    """Return the options with which redis-py uses the PEM files of one process: whom it trusts (``ca``), and who it is (``cert``, ``key``).

    Those without a path are not given; a key may stand in the certificate's file.

    Raises:
        ValueError: they would not be used, or are not whole.
    """
    given = [name for name, path in files.items() if path]
    if given and not url_speaks_tls:
        names = [f"{PREFIX}TLS_{name.upper()}" for name in given]
        are = "is" if len(names) == 1 else "are"
        raise ValueError(f"it does not speak TLS, though {' and '.join(names)} {are} set; write rediss:// for redis://")
    if "key" in given and "cert" not in given:
        raise ValueError(f"{PREFIX}TLS_KEY is set and {PREFIX}TLS_CERT is not; a key is nothing without its certificate")
    options = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
    return {options[name]: files[name] for name in given}


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


BLOCK = 2.0
"""Seconds that a blocking read waits at the server; read timeouts allow for it."""

_READ_TIMEOUT = BLOCK + 5.0
# Connecting, authenticating and loading the scripts, all in all. A server that hangs is waited for, unless another may take its place.
_OPEN_TIMEOUT, _OPEN_TIMEOUT_FOUND = 7.0, 3.0
# Every script, to be written at once: a write for each would take a third of the time in which a connection is opened.
_COMMANDS: list[Any] = [("SCRIPT", "LOAD", script.source) for script in scripts.ALL]
_LOADS = b"".join(map(hiredis.pack_command, _COMMANDS))
_CUT = re.compile(r"Connection closed by server|Error while reading from|while writing to socket")
_NO_SUCH_NAME = socket.EAI_NONAME
_SPEAKS_TLS = "if the server speaks TLS at this port, write rediss:// for redis://"
_WANTS_PASSWORD = re.compile(r"NOAUTH|HELLO must be called|Authentication required")
_HOW = f"write redis://:PASSWORD@HOST, or name a file with it in {PREFIX}PASSWORD_FILE"
_ADDRESS = re.compile(r"^Error (?:(-?\d+) )?connecting to (?P<place>[^ ]+?)\. ")
_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)|Connect call failed \([^)]*\)")
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")


class ServerInfo(msgspec.Struct, eq=False):
    """The server's description of itself when a connection opens; ``node`` is its address, if that was looked for."""

    name: str
    version: str
    run_id: str
    client_id: int
    node: Node | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Connector:
    """Opens connections for one URL and namespace, wherever the server is at that time.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, the first two with ``+sentinel`` or ``+cluster``, or ``memory://``.
        key: any key of the namespace, which names its slot in a cluster.
        password_file: a file that holds the password; read at every connect, so that a rotated one is found.
        files: the certificates, read at every connect as well.

    Attributes:
        discovery: finds the server.
        reached: whether a server that may serve us has answered here before.

    Raises:
        ConfigurationError: the URL can't be understood.
    """

    # Whether a server has answered at the default URL in this process, whose connectors come and go.
    _default_reached = False
    # Servers, with their users, that have refused to load scripts: a further try at each connect would be lines of their `ACL LOG`.
    _load_nothing: ClassVar[set[str]] = set()

    def __init__(self, url: str, *, key: str = "", password_file: str = "", files: Mapping[str, str] = MappingProxyType({})) -> None:
        self.display = redact(url)
        self._is_default = url == Settings().url
        self._password_file = password_file
        self.reached = False
        try:
            check_url(url)
            self._tls = speaks_tls(url)
            self.discovery = self._discover(url, key, tls_options(files, self._tls))
            _check(self.discovery.options)
        except (ValueError, redis.RedisError) as error:
            raise ConfigurationError(f"the URL {self.display!r} is wrong: {error}") from None

    def _discover(self, url: str, key: str, tls: Mapping[str, str]) -> Discovery:
        parts = urlsplit(url)
        if parts.scheme == "memory":
            return OfProcess({})
        if parts.scheme.endswith("+sentinel"):
            return BySentinel(parts, tls)
        if parts.scheme.endswith("+cluster"):
            return InCluster(parts, key, self._password, tls)
        return Discovery({**parse_url(url), **tls})

    @classmethod
    def of(cls, settings: Settings) -> Connector:
        """Return the connector of a process with these settings."""
        files = {"ca": settings.tls_ca, "cert": settings.tls_cert, "key": settings.tls_key}
        return cls(settings.url, key=Keys(settings.namespace).live, password_file=settings.password_file, files=files)

    async def connect(self) -> tuple[Any, ServerInfo]:
        """Return an open, authenticated connection to a master with every script loaded, and what the server is.

        Raises:
            BrokerUnavailable: it can't be reached, or is a replica now.
            CredentialsRefused: it refuses the user or the password.
            BrokerError: it refuses us.
            UnsupportedServer: it is too old.
        """
        return await self._open(await self.find())

    async def find(self) -> Node | None:
        """Return the address of the server now, or None when the URL has it.

        Raises:
            BrokerUnavailable: no node could say.
        """
        with self.errors():
            return await asyncio.to_thread(self.discovery.find) if self.discovery.asks else self.discovery.find()

    def at(self, node: Node) -> Connector:
        """Return a connector to one node of the cluster, with the same options."""
        other = copy.copy(self)
        other.display = f"{node.host}:{node.port}"
        other.discovery = Discovery(self.discovery.options, node)
        return other

    def leave(self) -> None:
        """Tell that no further connection is opened."""
        self.discovery.left()

    def redirected(self, node: Node) -> None:
        """Take a server's word that another one serves the namespace now."""
        self.discovery.redirected(node)

    async def _open(self, node: Node | None) -> tuple[Any, ServerInfo]:
        with self.errors():
            connection = clients.connection(self._options(node))
            try:
                # Not redis-py's own timeout: it waits by `asyncio.wait_for`, which loses cancellations in Python 3.11.
                async with asyncio.timeout(_OPEN_TIMEOUT if node is None else _OPEN_TIMEOUT_FOUND):
                    await connection.connect()
                    server = await self._handshake(connection)
            except BaseException:
                await clients.drop(connection)
                raise
            server.node = node
            return connection, server

    async def _handshake(self, connection: Any) -> ServerInfo:
        send, read = connection.send_command, connection.read_response
        await send("INFO", "server")
        fields = info_fields(await read())
        await send("INFO", "replication")
        fields |= info_fields(await read())
        name = "Valkey" if "valkey_version" in fields else "Redis"
        version = fields.get("valkey_version") or fields.get("redis_version", "unknown")
        major = version.split(".", 1)[0]
        if major.isdigit() and int(major[:9]) < 7:
            raise UnsupportedServer(f"the server is {name} {version}; toolbus needs Redis 7.0 or Valkey 7.2, or newer")
        if fields.get("role", "master") != "master":
            raise redis.ConnectionError(f"it is a read-only replica of {fields.get('master_host')}:{fields.get('master_port')}")
        self._answered()
        if self.display not in self._load_nothing:
            await self._load_scripts(connection, f"{name} {version}")
        await send("CLIENT", "ID")
        return ServerInfo(name, version, fields.get("run_id", ""), integer(await read(), most=2**63))

    def _answered(self) -> None:
        self.reached = True
        Connector._default_reached |= self._is_default

    async def _load_scripts(self, connection: Any, server: str) -> None:
        """Load them, which are the real probe: whatever lacks their flags or commands can't serve."""
        await connection.send_packed_command(_LOADS)
        for script in scripts.ALL:
            try:
                await connection.read_response()
            except redis.exceptions.NoPermissionError:
                # Some roles run only what others have loaded; who lacks more is told at the first command.
                self._load_nothing.add(self.display)
            except redis.ResponseError as error:
                raise UnsupportedServer(f"the server is {server} and can't load the script {script.name!r}: {error}") from None

    def sync_client(self, timeout: float = _READ_TIMEOUT) -> redis.Redis:
        """Return a synchronous client, for the lease thread; ``timeout`` seconds for a connect or an answer.

        Raises:
            redis.RedisError: no node could say where the server is.
        """
        return clients.client(self._options(self.discovery.find()), timeout)

    def _options(self, node: Node | None) -> dict[str, Any]:
        options = dict(self.discovery.options)
        if node is not None:
            options |= node._asdict()
        password = self._password()
        if password is not None:
            options["password"] = password
        return options

    def _password(self) -> str | None:
        return read_password(self._password_file) if self._password_file else None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn redis-py's exceptions into ours, naming the server and what to do."""
        try:
            yield
        except PasswordUnread as error:
            raise CredentialsRefused(f"{self.display} can't be asked: {error}") from None
        except (redis.AuthenticationError, redis.exceptions.AuthenticationWrongNumberOfArgsError) as error:
            raise CredentialsRefused(self._refused(str(error))) from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            reason = (str(error) or ("Timeout" if isinstance(error, TimeoutError) else type(error).__name__)).rstrip(".")
            if self._tls and (refusal := unreadable(self.discovery.options) or explain(reason)):
                raise BrokerError(f"{self.display}: {refusal}") from None
            # A name that does not exist is a mistake; everything else may pass.
            kind = BrokerError if _NO_SUCH_NAME in _causes(error) else BrokerUnavailable
            raise kind(f"can't reach {self.display}: {_plain(reason, self.display)}; {self._advice(reason)}") from None
        except redis.ResponseError as error:
            text = str(error)
            if text.startswith(("WRONGPASS", "NOAUTH")):
                raise CredentialsRefused(self._refused(text)) from None
            if text.startswith("NOPERM"):
                raise BrokerError(self._refused(text)) from None
            if text.startswith("BUSY "):
                # It speaks to us, and says that it does so again when a script has ended.
                self.reached = True
                raise BrokerUnavailable(f"{self.display}: {text.rstrip('.')}; waiting for the script to end") from None
            raise BrokerError(f"{self.display}: {text}") from None
        except redis.InvalidResponse as error:
            raise BrokerError(f"{self.display} does not answer as a Redis server does ({error}); {_SPEAKS_TLS}") from None
        except EnvelopeError as error:
            raise BrokerError(f"{self.display} does not answer as a Redis server does: {error}") from None
        except redis.RedisError as error:
            raise BrokerError(f"{self.display}: {error}") from None

    def _refused(self, text: str) -> str:
        """Return the message about a user or password that is missing or wrong."""
        if self.discovery.options.get("username") and not self.discovery.options.get("password") and not self._password_file:
            return f"{self.display} wants a password, and the URL has a user only; a password alone has a colon before it: {_HOW}"
        if _WANTS_PASSWORD.search(text):
            return f"{self.display} wants a password: {_HOW}"
        place = f"the file {self._password_file!r}" if self._password_file else "its URL"
        return f"{self.display} refused the user or password: {text.rstrip('.')}; correct them in {place}"

    def _advice(self, reason: str) -> str:
        """Return advice about a server that can't be reached."""
        late, cut = reason.startswith("Timeout"), _CUT.search(reason)
        if _WANTS_PASSWORD.search(reason):
            by_sentinel = isinstance(self.discovery, BySentinel)
            return "the Sentinels want ?sentinel_password=… or ?sentinel_password_file=… in the URL" if by_sentinel else _HOW
        # A server that has answered once speaks the right protocol, and who runs it knows how it is started.
        if self.reached:
            return "it answered before, so it is tried again"
        if late and not self._tls:
            return "look whether it stands still (`kill -CONT PID` lets it go on) or the network is cut, or correct its URL"
        if not cut and not late:
            # Whoever has named a server, or had one, would get an empty one beside it.
            is_new = self._is_default and not Connector._default_reached
            return f"start a server with `toolbus dev`, or set {PREFIX}URL" if is_new else "start it, or correct its URL"
        if late:
            return "if the server does not speak TLS at this port, write redis:// for rediss://"
        if self._tls:
            return f"if the server wants a client certificate, set {PREFIX}TLS_CERT and {PREFIX}TLS_KEY to one that it trusts"
        return _SPEAKS_TLS


def _causes(error: BaseException | None) -> list[int | None]:
    """Return the numbers of the errors of look-ups that led to an error."""
    found: list[int | None] = []
    while error is not None:
        if isinstance(error, socket.gaierror):
            found.append(error.errno)
        error = error.__cause__ or error.__context__
    return found


def _plain(reason: str, display: str) -> str:
    """Return redis-py's reason for a failed connect, without an address that ``display`` has."""
    found = _ADDRESS.match(reason)
    if found is None:
        return reason
    told = reason[found.end() :]
    if _FAILED.fullmatch(told) and found[1]:
        told = os.strerror(int(found[1]))
    return told if found["place"] in display else f"{found['place']}: {told}"


def _check(options: dict[str, Any]) -> None:
    """Find parameters of a URL that no connection would take."""
    try:
        clients.check(options)
    except TypeError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise ValueError(str(error)) from None
        why = "needs rediss://" if unknown[1].startswith("ssl_") and not clients.encrypted(options) else "is unknown"
        raise ValueError(f"its parameter {unknown[1]!r} {why}") from None
