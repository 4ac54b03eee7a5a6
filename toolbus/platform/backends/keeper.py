"""Keep one program: run as a script between a host and the program, it ends everything that the program started.

The kernel gives it the orphans of the program. The host speaks with it over a pair of sockets, whose end says that the host is gone.
It imports nothing of toolbus, so that it starts quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time

_SUBREAPER, _DEATH_SIGNAL = 36, 1
_LONGEST_LINE = 2_000
# Lines that are passed on at once, and per second after that; the program never waits for anyone to read them.
_BURST, _RATE = 2_000.0, 200.0
_CHUNK = 65_536
# Bytes that wait for the host to read them; further lines are lost.
_MOST_UNTOLD = 262_144
# Seconds that a host has to read the last lines.
_LAST_WORDS = 1.0
_NOT_STARTED = 127


class Lines:
    """Cuts output into lines of bounded length, and leaves lines out that come too quickly."""

    def __init__(self) -> None:
        self._line = b""
        self._is_cut = False
        self._allowance, self._filled = _BURST, time.monotonic()
        self._left_out = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in a chunk and may be passed on."""
        now = time.monotonic()
        self._allowance, self._filled = min(_BURST, self._allowance + (now - self._filled) * _RATE), now
        *ended, rest = chunk.split(b"\n")
        found: list[bytes] = []
        for part in ended:
            self._extend(part)
            self._take(found)
        self._extend(rest)
        return found

    def end(self) -> list[bytes]:
        """Return what is left when the output has ended."""
        found: list[bytes] = []
        if self._line:
            self._take(found)
        if self._left_out:
            found.append(b"(%d lines left out)" % self._left_out)
        return found

    def _extend(self, part: bytes) -> None:
        room = _LONGEST_LINE - len(self._line)
        self._is_cut = self._is_cut or len(part) > room
        self._line += part[:room]

    def _take(self, found: list[bytes]) -> None:
        line, cut = self._line, self._is_cut
        self._line, self._is_cut = b"", False
        if self._allowance < 1:
            self._left_out += 1
            return
        self._allowance -= 1
        if self._left_out:
            found.append(b"(%d lines left out)" % self._left_out)
            self._left_out = 0
        found.append(line.rstrip(b"\r") + (" …".encode() if cut else b""))


class Keeper:
    """Runs a program until it ends, is stopped, or its host is gone."""

    def __init__(self, lifeline: socket.socket, words: list[str]) -> None:
        self._lifeline = lifeline
        self._words = words
        self._lines = Lines()
        self._asked = self._untold = b""
        self._program = 0
        self._code: int | None = None
        self._kill_at: float | None = None
        self._output = -1

    def run(self) -> int:
        """Run it, and return the exit code of the program."""
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._stop(0.0))
        self._start()
        while self._code is None:
            left = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            sources = [source for source in (self._lifeline.fileno(), woken, self._output) if source >= 0]
            ready, writable, _ = select.select(sources, [self._lifeline.fileno()] if self._untold else [], [], left)
            if writable:
                self._send()
            if woken in ready:
                os.read(woken, _CHUNK)
            if self._output in ready:
                self._read()
            if self._lifeline.fileno() in ready and not self._hear():
                break
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                break
            self._reap()
        self._end_all()
        self._read_rest()
        code = _NOT_STARTED if self._code is None else self._code
        self._tell(b"e", b"%d" % code)
        with contextlib.suppress(OSError):
            self._lifeline.settimeout(_LAST_WORDS)
            self._lifeline.sendall(self._untold)
        return code if 0 <= code < 256 else 128 - code

    def _start(self) -> None:
        output, write = os.pipe()
        failed, fail = os.pipe()
        self._program = os.fork()
        if self._program == 0:
            try:
                os.setsid()
                _prctl(_DEATH_SIGNAL, signal.SIGKILL)
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
                    signal.signal(number, signal.SIG_DFL)
                nothing = os.open(os.devnull, os.O_RDONLY)
                for target, source in enumerate((nothing, write, write)):
                    os.dup2(source, target)
                os.execvp(self._words[0], self._words)  # noqa: S606 - the words are the operator's
            except OSError as error:
                os.write(fail, (error.strerror or str(error)).encode())
            os._exit(_NOT_STARTED)
        os.close(write)
        os.close(fail)
        self._output = output
        self._tell(b"p", b"%d" % self._program)
        reason = os.read(failed, _CHUNK)
        os.close(failed)
        if reason:
            self._tell(b"f", reason)

    def _read(self) -> None:
        chunk = os.read(self._output, _CHUNK)
        for line in self._lines.feed(chunk) if chunk else self._lines.end():
            self._tell(b"o", line)
        if not chunk:
            os.close(self._output)
            self._output = -1

    def _read_rest(self) -> None:
        """Read what the program wrote last; what it had handed its output to is dead by now."""
        until = time.monotonic() + 1.0
        while self._output >= 0 and time.monotonic() < until:
            ready, _, _ = select.select([self._output], [], [], 0.1)
            if not ready:
                break
            self._read()
        if self._output >= 0:
            for line in self._lines.end():
                self._tell(b"o", line)

    def _hear(self) -> bool:
        """Take in what the host says; return whether there is still one."""
        try:
            said = self._lifeline.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        if not said:
            return False
        *lines, self._asked = (self._asked + said).split(b"\n")
        for line in lines:
            self._stop(float(line))
        return True

    def _stop(self, within: float) -> None:
        """Ask the program to end, and kill it after so many seconds."""
        until = time.monotonic() + within
        self._kill_at = until if self._kill_at is None else min(until, self._kill_at)
        with contextlib.suppress(OSError):
            os.killpg(self._program, signal.SIGTERM)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._program:
                    self._code = os.waitstatus_to_exitcode(found[1])

    def _end_all(self) -> None:
        """Kill everything that the program has started, until nothing of it is left."""
        until = time.monotonic() + 10.0
        while time.monotonic() < until:
            if self._code is None:
                with contextlib.suppress(OSError):
                    os.killpg(self._program, signal.SIGKILL)
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            time.sleep(0.002)

    def _tell(self, kind: bytes, text: bytes) -> None:
        # A host that does not read misses lines; the program must not wait for it.
        if kind == b"o" and len(self._untold) > _MOST_UNTOLD:
            return
        self._untold += kind + b" " + text + b"\n"
        self._send()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while self._untold:
                self._untold = self._untold[self._lifeline.send(self._untold) :]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process and its own have started; none where the system does not say."""
    children: dict[int, list[int]] = {}
    try:
        everyone = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - pathlib is not imported here
    except OSError:
        return []
    for each in everyone:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{each}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(each)
    found, look = [], [pid]
    while look:
        own = children.pop(look.pop(), [])
        found += own
        look += own
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """Keep the program that the words after the first name; the first is the number of the lifeline's descriptor."""
    lifeline = socket.socket(fileno=int(arguments[0]))
    lifeline.set_inheritable(False)
    lifeline.setblocking(False)
    _prctl(_SUBREAPER, 1)
    return Keeper(lifeline, arguments[1:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
