"""From a URL to connections: redis-py opens, authenticates and speaks TLS; here its errors become ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio as aredis
from redis.asyncio.connection import parse_url
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from toolbus.broker import scripts
from toolbus.results import BrokerError, BrokerUnavailable, ConfigurationError, UnsupportedServer

BLOCK = 2.0
"""Seconds that a blocking read waits at the server; redis-py's and our own read timeouts allow for it."""

_READ_TIMEOUT = BLOCK + 5.0
_CONNECT_TIMEOUT = 5.0


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
    """Opens connections to one URL (``redis://``, ``rediss://``, ``unix://``).

    :raises ConfigurationError: the URL can't be understood.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.display = redact(url)
        try:
            options: dict[str, Any] = {**parse_url(url)}
        except ValueError as error:
            raise ConfigurationError(f"the URL {self.display!r} is wrong: {error}") from None
        self._connection_class: Any = options.pop("connection_class", aredis.Connection)
        self._options: dict[str, Any] = {
            "socket_timeout": _READ_TIMEOUT,
            "socket_connect_timeout": _CONNECT_TIMEOUT,
            # Whether a command may be sent again is ours to decide: a blind retry would publish twice.
            "retry": Retry(NoBackoff(), 0),
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            "protocol": 3,
            **options,
        }

    async def connect(self) -> tuple[Any, ServerInfo]:
        """An open, authenticated connection with every script loaded, and what the server is.

        :raises BrokerUnavailable: it can't be reached.
        :raises BrokerError: it refuses us.
        :raises UnsupportedServer: it is too old.
        """
        connection = self._connection_class(**self._options)
        with self.errors():
            try:
                await connection.connect()
                return connection, await _greet(connection.send_command, connection.read_response)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

    def sync_client(self) -> redis.Redis:
        """A synchronous client, for the lease thread and for short commands of the CLI."""
        return redis.Redis.from_url(
            self.url,
            socket_timeout=_READ_TIMEOUT,
            socket_connect_timeout=_CONNECT_TIMEOUT,
            retry=Retry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
            protocol=3,
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn redis-py's exceptions into ours, naming the server and what to do."""
        try:
            yield
        except (redis.AuthenticationError, redis.exceptions.AuthenticationWrongNumberOfArgsError) as error:
            raise BrokerError(f"{self.display} refused the user or password: {error}") from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            reason = str(error).rstrip(".")
            raise BrokerUnavailable(
                f"can't reach {self.display}: {reason}; start a server with `toolbus dev`, or set TOOLBUS_URL"
            ) from None
        except redis.ResponseError as error:
            text = str(error)
            if text.startswith(("WRONGPASS", "NOAUTH", "NOPERM")):
                raise BrokerError(f"{self.display} refused the user or password: {text}") from None
            raise BrokerError(f"{self.display}: {text}") from None
        except redis.RedisError as error:
            raise BrokerError(f"{self.display}: {error}") from None


def redact(url: str) -> str:
    """The URL without its password, fit for logs."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return "the given URL"
    return url.replace(f":{password}@", ":***@", 1) if password else url


async def _greet(send: Callable[..., Awaitable[None]], read: Callable[..., Awaitable[Any]]) -> ServerInfo:
    await send("INFO", "server")
    fields = dict(line.split(":", 1) for line in _text(await read()).splitlines() if ":" in line)
    name = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields.get("redis_version", "unknown")
    major = version.split(".", 1)[0]
    if major.isdigit() and int(major) < 7:
        raise UnsupportedServer(f"the server is {name} {version}; toolbus needs Redis 7.0 or Valkey 7.2, or newer")
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


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
