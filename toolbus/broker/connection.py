"""From a URL to connections: redis-py opens, authenticates and speaks TLS; here its errors become ours."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
import redis.asyncio as aredis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from toolbus.broker import scripts
from toolbus.broker.discovery import At, Fixed, Node, discovery, speaks_tls
from toolbus.broker.keys import Keys
from toolbus.broker.replies import info_fields
from toolbus.broker.tls import Files, explain, unreadable
from toolbus.results import BrokerError, BrokerUnavailable, ConfigurationError, UnsupportedServer
from toolbus.settings import PREFIX, Settings

BLOCK = 2.0
"""Seconds that a blocking read waits at the server; read timeouts allow for it."""

_READ_TIMEOUT = BLOCK + 5.0
_CONNECT_TIMEOUT = 5.0
# Connecting, authenticating and loading the scripts, all in all.
_OPEN_TIMEOUT = 7.0
_SYNCHRONOUS: dict[Any, Any] = {
    aredis.Connection: redis.Connection,
    aredis.SSLConnection: redis.SSLConnection,
    aredis.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
}
_PASSWORD = re.compile(r"(://[^/@:]*):.*@|(\w*password=)[^&]*")
_CUT = re.compile(r"Connection closed by server|Error while reading from|while writing to socket")
_SPEAKS_TLS = "if the server speaks TLS at this port, write rediss:// for redis://"
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")


class ServerInfo:
    """What a server says of itself when a connection opens."""

    __slots__ = ("client_id", "name", "run_id", "version")

    def __init__(self, name: str, version: str, run_id: str, client_id: int) -> None:
        self.name = name
        self.version = version
        self.run_id = run_id
        self.client_id = client_id

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Connector:
    """Opens connections for one URL and namespace, wherever the server is at that time.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, or the first two with ``+sentinel`` or ``+cluster``.
        key: any key of the namespace, which names its slot in a cluster.
        password_file: a file that holds the password; read at every connect, so that a rotated one is found.
        files: the certificates, read at every connect as well.

    :raises ConfigurationError: the URL can't be understood.
    """

    def __init__(self, url: str, *, key: str = "", password_file: str = "", files: Files | None = None) -> None:
        self.display = redact(url)
        self._password_file = password_file
        self._reached = False
        try:
            self._tls = speaks_tls(url)
            self._discovery = discovery(url, key, self._password, (files or Files()).options(self._tls))
            _check(self._discovery.options)
        except (ValueError, redis.RedisError) as error:
            raise ConfigurationError(f"the URL {self.display!r} is wrong: {error}") from None

    @classmethod
    def of(cls, settings: Settings) -> Connector:
        """The connector of a process with these settings."""
        return cls(settings.url, key=Keys(settings.namespace).live, password_file=settings.password_file, files=Files.of(settings))

    async def connect(self) -> tuple[Any, ServerInfo]:
        """An open, authenticated connection to a master with every script loaded, and what the server is.

        :raises BrokerUnavailable: it can't be reached, or is a replica now.
        :raises BrokerError: it refuses us.
        :raises UnsupportedServer: it is too old.
        """
        with self.errors():
            fixed = isinstance(self._discovery, (Fixed, At))
            node = self._discovery.find() if fixed else await asyncio.to_thread(self._discovery.find)
        return await self._open(node)

    def at(self, node: Node) -> Connector:
        """The same for one node of the cluster."""
        other = copy.copy(self)
        other.display = f"{node.host}:{node.port}"
        other._discovery = At(node, self._discovery.options)
        return other

    def told(self, node: Node) -> None:
        """Take a server's word that another one serves the namespace now."""
        self._discovery.told(node)

    async def _open(self, node: Node | None) -> tuple[Any, ServerInfo]:
        with self.errors():
            options = self._options(node)
            connection = options.pop("connection_class", aredis.Connection)(**options)
            try:
                # Not redis-py's own timeout: it waits by `asyncio.wait_for`, which loses cancellations in Python 3.11.
                async with asyncio.timeout(_OPEN_TIMEOUT):
                    await connection.connect()
                    server = await _greet(connection.send_command, connection.read_response)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            self._reached = True
            return connection, server

    def sync_client(self, timeout: float = _READ_TIMEOUT) -> redis.Redis:
        """A synchronous client, for the lease thread; ``timeout`` seconds for a connect or an answer.

        :raises redis.RedisError: nobody could say where the server is.
        """
        options = self._options(self._discovery.find())
        kind = options.pop("connection_class", aredis.Connection)
        options |= {"socket_timeout": timeout, "socket_connect_timeout": min(timeout, _CONNECT_TIMEOUT)}
        pool = redis.ConnectionPool(connection_class=_SYNCHRONOUS[kind], **options)
        return redis.Redis.from_pool(pool)

    def _options(self, node: Node | None) -> dict[str, Any]:
        options = {
            "socket_timeout": None,
            "socket_connect_timeout": _CONNECT_TIMEOUT,
            # Whether a command may be sent again is ours to decide: a blind retry would publish twice.
            "retry": Retry(NoBackoff(), 0),
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            "protocol": 3,
            **self._discovery.options,
        }
        if self._tls:
            # Without one, OpenSSL asks at the terminal for the password of a key, and everything waits.
            options.setdefault("ssl_password", "")
        if node is not None:
            options |= {"host": node.host, "port": node.port}
        password = self._password()
        if password is not None:
            options["password"] = password
        return options

    def _password(self) -> str | None:
        if not self._password_file:
            return None
        try:
            return Path(self._password_file).read_text("utf-8").strip()
        except OSError as error:
            raise redis.AuthenticationError(f"the password file can't be read: {error}") from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn redis-py's exceptions into ours, naming the server and what to do."""
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.AuthenticationWrongNumberOfArgsError) as error:
            raise BrokerError(f"{self.display} refused the user or password: {error}") from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            reason = (str(error) or type(error).__name__).rstrip(".")
            if self._tls and (refusal := unreadable(self._discovery.options) or explain(reason)):
                raise BrokerError(f"{self.display}: {refusal}") from None
            raise BrokerUnavailable(f"can't reach {self.display}: {reason}; {self._advice(reason)}") from None
        except redis.ResponseError as error:
            text = str(error)
            if text.startswith(("WRONGPASS", "NOAUTH", "NOPERM")):
                raise BrokerError(f"{self.display} refused the user or password: {text}") from None
            raise BrokerError(f"{self.display}: {text}") from None
        except redis.InvalidResponse as error:
            raise BrokerError(f"{self.display} does not answer as a Redis server does ({error}); {_SPEAKS_TLS}") from None
        except redis.RedisError as error:
            raise BrokerError(f"{self.display}: {error}") from None

    def _advice(self, reason: str) -> str:
        """What to do about a server that can't be reached."""
        late, cut = reason.startswith("Timeout"), _CUT.search(reason)
        # What has answered once speaks the right protocol.
        if self._reached or not (cut or (late and self._tls)):
            return f"start a server with `toolbus dev`, or set {PREFIX}URL"
        if late:
            return "if the server does not speak TLS at this port, write redis:// for rediss://"
        if self._tls:
            return f"if the server wants a client certificate, set {PREFIX}TLS_CERT and {PREFIX}TLS_KEY to one that it trusts"
        return _SPEAKS_TLS


def redact(url: str) -> str:
    """The URL without its passwords, fit for logs."""
    return _PASSWORD.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1]}:***@", url)


def _check(options: dict[str, Any]) -> None:
    """Find parameters of a URL that no connection would take."""
    kind = options.get("connection_class", aredis.Connection)
    given = {name: value for name, value in options.items() if name != "connection_class"}
    try:
        kind(**given)
        _SYNCHRONOUS[kind](**given)
    except TypeError as error:
        unknown = _UNKNOWN.search(str(error))
        if unknown is None:
            raise ValueError(str(error)) from None
        why = "needs rediss://" if unknown[1].startswith("ssl_") and kind is not aredis.SSLConnection else "is unknown"
        raise ValueError(f"its parameter {unknown[1]!r} {why}") from None


async def _greet(send: Callable[..., Awaitable[None]], read: Callable[..., Awaitable[Any]]) -> ServerInfo:
    await send("INFO", "server")
    fields = info_fields(await read())
    await send("INFO", "replication")
    fields |= info_fields(await read())
    name = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields.get("redis_version", "unknown")
    major = version.split(".", 1)[0]
    if major.isdigit() and int(major) < 7:
        raise UnsupportedServer(f"the server is {name} {version}; toolbus needs Redis 7.0 or Valkey 7.2, or newer")
    if fields.get("role", "master") != "master":
        raise redis.ConnectionError(f"it is a read-only replica of {fields.get('master_host')}:{fields.get('master_port')}")
    # The scripts are the real probe: whatever lacks their flags or commands can't serve.
    for script in scripts.ALL:
        await send("SCRIPT", "LOAD", script.source)
    for script in scripts.ALL:
        try:
            await read()
        except redis.ResponseError as error:
            raise UnsupportedServer(f"the server is {name} {version} and can't load the script {script.name!r}: {error}") from None
    await send("CLIENT", "ID")
    return ServerInfo(name, version, fields.get("run_id", ""), int(await read()))
