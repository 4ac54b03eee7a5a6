"""A server of the simulation: sessions that speak RESP3, the commands, and the real Lua scripts, one command at a time."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import hiredis
import lupa.lua51 as lupa

from tests.simulation.commands import BLOCKS, COMMANDS, OK, Pairs, Reading, Streams, decimal
from tests.simulation.storage import ErrorReply, Status, Storage

_VERSION = "7.2.4"
_SENT = object()


class Push(list[Any]):
    """A message out of turn."""


class Server:
    """One server.

    Args:
        clock: its time, in microseconds since 1970.
        later: calls a function after so many seconds, and returns what has ``cancel``; for reads that wait.
        random: its random numbers.

    Attributes:
        db: its keys.
        refusals: called with the name of each command or script, and whether it writes and may grow; the first that returns a text has it
            refused with that error.
        observe: called with the session, the client, the words of each command that was carried out, its answer, and that as it is sent.
        meet: called with the session and the words of each command before it is carried out; returns whether the connection is to be cut
            "before" that or "after", or None.
        changed: called with the keys that a command has changed.
        watch: called with the client and the words of each command before it is carried out; what it returns is called if that succeeds.
        waiting: the sessions whose reads wait, in the order in which they came, and the keys for which they wait.
        asked: whether the command that is carried out was announced by ASKING.
    """

    def __init__(self, clock: Callable[[], int], later: Callable[..., Any], random: Random) -> None:
        self.db = Storage(clock)
        self.later = later
        self.random = random
        self.refusals: list[Callable[[str, bool, bool], str]] = []
        self.observe: Callable[[int, Any, list[bytes], Any, bytes], None] = lambda session, client, words, answer, sent: None
        self.meet: Callable[[Session, list[bytes]], str | None] = lambda session, words: None
        self.changed: Callable[[set[bytes]], None] = lambda keys: None
        self.watch: Callable[[Any, list[bytes]], Callable[[], None] | None] = lambda client, words: None
        self.sessions: list[Session] = []
        self.waiting: dict[Session, frozenset[bytes]] = {}
        self.asked = False
        self._opened = 0
        self.begin()

    def begin(self) -> None:
        """Be another process: with a run id of its own, and without scripts."""
        self.run_id = f"{self.random.getrandbits(160):040x}"
        self.scripts: dict[bytes, bytes] = {}
        self.role = "master"

    def open(self, client: Any, send: Callable[[bytes], None], cut: Callable[[], None]) -> Session:
        """Return a session with a client, which gets bytes by ``send``; ``cut`` ends its connection."""
        self._opened += 1
        session = Session(self, self._opened, client, send, cut)
        self.sessions.append(session)
        return session

    def carry_out(self, words: list[bytes], script: str = "") -> Any:
        """Return the answer to a command that needs no session; raises ``ErrorReply``."""
        name = words[0]
        command = COMMANDS.get(name) or COMMANDS.get(name.upper())
        if command is None:
            raise ErrorReply(f"ERR unknown command '{name.decode('latin-1')}', with args beginning with: ")
        if self.refusals and not script and (refusal := self.refusal(name.decode().upper(), command.writes, command.grows)):
            raise ErrorReply(refusal)
        return command.run(self.db, self.random, words[1:])

    def run_script(self, source: bytes, words: list[bytes]) -> Any:
        """Return the answer of a script; ``words`` are the number of keys, the keys and the arguments."""
        count = int(words[0])
        flags = source.partition(b"\n")[0]
        # One without flags is looked at command by command.
        writes = source.startswith(b"#!") and b"no-writes" not in flags
        if refusal := self.refusal("script", writes, writes and b"allow-oom" not in flags):
            raise ErrorReply(refusal)
        self.scripts[_digest(source)] = source
        return _run(self, source, words[1 : 1 + count], words[1 + count :])

    def refusal(self, name: str, writes: bool, grows: bool) -> str:
        """Return the refusal of a command now, or an empty text."""
        return next((text for refuse in self.refusals if (text := refuse(name, writes, grows))), "")

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send a message to those who listen."""
        listening = [session for session in self.sessions if channel in session.channels]
        for session in listening:
            session.answer(Push([b"message", channel, message]))
        return len(listening)

    def serve_waiting(self) -> None:
        """Carry out what waited for keys that have changed since."""
        while self.db.changed:
            changed, self.db.changed = self.db.changed, set()
            self.changed(changed)
            for session in [session for session, keys in self.waiting.items() if not keys.isdisjoint(changed)]:
                session.wake()

    def info(self, section: str) -> str:
        """Return what the server says of itself."""
        about = {
            "server": f"redis_version:{_VERSION}\r\nrun_id:{self.run_id}\r\n",
            "replication": f"role:{self.role}\r\nmaster_host:other\r\nmaster_port:6379\r\n",
            "memory": "maxmemory_policy:noeviction\r\n",
        }
        return about.get(section, "")


class Session:
    """One connection of a client, as the server sees it.

    Attributes:
        client: the process of the client.
        channels: those that it listens to.
    """

    def __init__(self, server: Server, number: int, client: Any, send: Callable[[bytes], None], cut: Callable[[], None]) -> None:
        self._server = server
        self.number = number
        self.client = client
        self._cut = cut
        self._send = send
        self._reader = hiredis.Reader()
        self._waiting: deque[list[bytes]] = deque()
        self._blocked: list[bytes] | None = None
        self._timer: Any = None
        self._asking = False
        self._answers: list[bytes] = []
        self._answering = False
        self.channels: dict[bytes, None] = {}

    def receive(self, data: bytes) -> None:
        """Take in bytes of the client, and carry out the commands that are whole now."""
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            self._waiting.append(words)
        self._go_on()

    def close(self) -> None:
        """End it: what it waits for is forgotten."""
        self._waiting.clear()
        self._unblock()
        if self in self._server.sessions:
            self._server.sessions.remove(self)

    def wake(self) -> None:
        """Try again what waits."""
        words = self._blocked
        if words is None:
            return
        answer = self._outcome(words)
        if answer is BLOCKS:
            return
        self._unblock()
        self.answer(answer, words)
        self._go_on()

    def answer(self, answer: Any, words: list[bytes] | None = None) -> None:
        """Send an answer; those to commands that came together leave together."""
        sent = encoded(answer)
        if words is not None:
            self._server.observe(self.number, self.client, words, answer, sent)
        self._answers.append(sent)
        if not self._answering:
            self._send_answers()

    def unblock(self) -> bool:
        """End its waiting without an answer; False when it does not wait."""
        if self._blocked is None:
            return False
        words = self._blocked
        self._unblock()
        self.answer(None, words)
        self._server.later(0.0, self._go_on)
        return True

    # -- inside -----------------------------------------------------------------------------------

    def _send_answers(self) -> None:
        answers, self._answers = b"".join(self._answers), []
        if answers:
            self._send(answers)

    def _go_on(self) -> None:
        self._answering = True
        self._carry_out()
        self._answering = False
        self._send_answers()

    def _carry_out(self) -> None:
        while self._waiting and self._blocked is None:
            words = self._waiting.popleft()
            cut = self._server.meet(self, words)
            if cut == "before":
                self._cut()
                return
            answer = self._outcome(words)
            if cut == "after":
                self._cut()
                self._server.serve_waiting()
                return
            if answer is BLOCKS:
                self._block(words)
                continue
            if answer is not _SENT:
                self.answer(answer, words)
            self._server.serve_waiting()

    def _block(self, words: list[bytes]) -> None:
        self._blocked = words
        reading = Reading.of(words[1:])
        self._server.waiting[self] = frozenset(key for key, _ in reading.positions)
        if reading.block:
            self._timer = self._server.later(reading.block / 1000, self.unblock)

    def _unblock(self) -> None:
        self._blocked = None
        self._server.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _outcome(self, words: list[bytes]) -> Any:
        self._server.asked, self._asking = self._asking, False
        look = self._server.watch(self.client, words)
        try:
            own = _OF_SESSIONS.get(words[0].upper())
            answer = self._server.carry_out(words) if own is None else own(self, words[1:])
        except ErrorReply as error:
            return error
        if look is not None and not isinstance(answer, ErrorReply):
            look()
        return answer

    def _hello(self, words: list[bytes]) -> Any:
        return {b"server": b"redis", b"version": _VERSION.encode(), b"proto": 3, b"id": self.number, b"role": self._server.role.encode()}

    def _client(self, words: list[bytes]) -> Any:
        what = words[0].upper()
        if what == b"ID":
            return self.number
        if what == b"UNBLOCK":
            return int(any(session.unblock() for session in list(self._server.sessions) if session.number == int(words[1])))
        return OK

    def _info(self, words: list[bytes]) -> Any:
        return self._server.info(words[0].decode().lower() if words else "server").encode()

    def _role(self, words: list[bytes]) -> Any:
        return [b"master", 0, []] if self._server.role == "master" else [b"slave", b"other", 6379, b"connected", 0]

    def _script(self, words: list[bytes]) -> Any:
        if words[0].upper() == b"FLUSH":
            self._server.scripts.clear()
            return OK
        sha = _digest(words[1])
        self._server.scripts[sha] = words[1]
        return sha

    def _eval(self, words: list[bytes]) -> Any:
        return self._server.run_script(words[0], words[1:])

    def _evalsha(self, words: list[bytes]) -> Any:
        source = self._server.scripts.get(words[0])
        if source is None:
            raise ErrorReply("NOSCRIPT No matching script. Please use EVAL.")
        return self._server.run_script(source, words[1:])

    def _publish(self, words: list[bytes]) -> Any:
        return self._server.publish(words[0], words[1])

    def _subscribe(self, words: list[bytes]) -> Any:
        for channel in words:
            self.channels[channel] = None
            self.answer(Push([b"subscribe", channel, len(self.channels)]))
        return _SENT

    def _unsubscribe(self, words: list[bytes]) -> Any:
        for channel in words:
            self.channels.pop(channel, None)
            self.answer(Push([b"unsubscribe", channel, len(self.channels)]))
        return _SENT

    def _ask(self, words: list[bytes]) -> Any:
        self._asking = True
        return OK

    def _accept(self, words: list[bytes]) -> Any:
        return OK

    def _wait(self, words: list[bytes]) -> Any:
        return 0


_OF_SESSIONS: dict[bytes, Callable[[Session, list[bytes]], Any]] = {
    b"ASKING": Session._ask,
    b"AUTH": Session._accept,
    b"CLIENT": Session._client,
    b"EVAL": Session._eval,
    b"EVALSHA": Session._evalsha,
    b"HELLO": Session._hello,
    b"INFO": Session._info,
    b"PUBLISH": Session._publish,
    b"ROLE": Session._role,
    b"SCRIPT": Session._script,
    b"SELECT": Session._accept,
    b"SUBSCRIBE": Session._subscribe,
    b"UNSUBSCRIBE": Session._unsubscribe,
    b"WAIT": Session._wait,
}


def encoded(answer: Any) -> bytes:
    """Return an answer as it is sent."""
    out: list[bytes] = []
    _encode(answer, out)
    return b"".join(out)


def _encode(value: Any, out: list[bytes]) -> None:
    if value is None:
        out.append(b"_\r\n")
    elif type(value) is bytes:
        out.append(b"$%d\r\n%b\r\n" % (len(value), value))
    elif type(value) is int:
        out.append(b":%d\r\n" % value)
    elif type(value) is Status:
        out.append(b"+%b\r\n" % value)
    elif isinstance(value, ErrorReply):
        out.append(b"-%b\r\n" % str(value).replace("\n", " ").encode("latin-1", "replace"))
    elif isinstance(value, float):
        out.append(b",%b\r\n" % decimal(value))
    elif isinstance(value, dict):
        out.append(b"%%%d\r\n" % len(value))
        for name, each in value.items():
            _encode(name, out)
            _encode(each, out)
    else:
        out.append(b"%b%d\r\n" % (b">" if type(value) is Push else b"*", len(value)))
        for each in value:
            _encode(each, out)


# -- scripts ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _digest(source: bytes) -> bytes:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


_lua = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=False)
_table = _lua.eval("function() return {} end")
_TABLE = type(_table())
_compiled: dict[bytes, Any] = {}
_begin = _lua.execute(b"""
redis = {}
local carry_out
function redis.pcall(...) return carry_out(...) end
function redis.call(...)
  local answer = carry_out(...)
  if type(answer) == 'table' and answer.err then error(answer, 0) end
  return answer
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
return function(call, script, keys, arguments)
  carry_out = call
  return {pcall(script, keys, arguments)}
end
""")


def _run(server: Server, source: bytes, keys: list[bytes], arguments: list[bytes]) -> Any:
    script = _compiled.get(source)
    if script is None:
        body = source.partition(b"\n")[2] if source.startswith(b"#!") else source
        script = _compiled[source] = _lua.eval(b"function(KEYS, ARGV) " + body + b"\nend")

    # One that has written may go on.
    may_write = source.startswith(b"#!")

    def call(*words: Any) -> Any:
        nonlocal may_write
        packed = [word if type(word) is bytes else b"%d" % word if type(word) is int else b"%.17g" % word for word in words]
        try:
            if packed[0] == b"PUBLISH":
                return server.publish(packed[1], packed[2])
            if packed[0] == b"INFO":
                return server.info(packed[1].decode()).encode()
            if not may_write and (command := COMMANDS.get(packed[0])) is not None and command.writes:
                if refusal := server.refusal(packed[0].decode(), True, command.grows):
                    raise ErrorReply(refusal)
                may_write = True
            answer = server.carry_out(packed, "in a script")
        except ErrorReply as error:
            return _lua.table_from({b"err": str(error).encode("latin-1")})
        return answer if type(answer) is bytes or type(answer) is int else _to_lua(None if answer is BLOCKS else answer)

    returned = _begin(call, script, _lua.table_from(keys), _lua.table_from(arguments))
    answer = returned[2]
    if returned[1]:
        return _from_lua(answer)
    if isinstance(answer, _TABLE) and answer[b"err"] is not None:
        raise ErrorReply(f"{answer[b'err'].decode('latin-1')} script: on @user_script")
    raise ErrorReply(f"ERR {answer!r} script: on @user_script")


def _to_lua(value: Any) -> Any:
    if value is None:
        return False
    if type(value) is bytes or type(value) is int:
        return value
    if type(value) is Status:
        return _lua.table_from({b"ok": bytes(value)})
    if isinstance(value, float):
        return decimal(value)
    if isinstance(value, dict):
        pairs = value.items()
        flat = [[name, each] for name, each in pairs] if type(value) is Streams else [word for pair in pairs for word in pair]
        return _to_lua(flat)
    if type(value) is Pairs:
        return _to_lua([word for pair in value for word in pair])
    return _lua.table_from([each if type(each) is bytes else _to_lua(each) for each in value])


def _from_lua(value: Any) -> Any:
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if type(value) is bytes or type(value) is int:
        return value
    if isinstance(value, float):
        return int(value)
    if (error := value[b"err"]) is not None:
        raise ErrorReply(error.decode("latin-1"))
    if (status := value[b"ok"]) is not None:
        return Status(status)
    return list(_elements(value))


def _elements(table: Any) -> Iterator[Any]:
    index = 1
    while (each := table[index]) is not None:
        yield _from_lua(each)
        index += 1
