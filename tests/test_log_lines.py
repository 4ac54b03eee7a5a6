"""The lines that our own programs log: what they cost, that no value breaks them, and that none is lost."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import eventually
from toolbus.bus import telemetry

pytestmark = pytest.mark.anyio

CALL = {"tool": "add", "user": "u1", "id": "Zr3hcbT0qVYf0pXn9WbQ3A", "attempt": 1, "ms": 0.3}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Provide the library's logger, and restore it afterwards."""
    logger = logging.getLogger("toolbus")
    before = logger.level, logger.propagate, logger.handlers[:], logger.filters[:]
    yield logger
    logger.propagate = before[1]
    logger.handlers[:], logger.filters[:] = before[2], before[3]
    logger.setLevel(before[0])


class Stream(io.StringIO):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        self.writes.append(text)
        return super().write(text)


class Untellable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def deep() -> list[Any]:
    """Return a list with more levels than Python's stack has."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


HOSTILE = {
    "surrogates": "a\ud800b",
    "line breaks": 'x\n{"time": "2026-01-01T00:00:00.000Z", "level": "info", "event": "call.finished"}\r\u2028\x85\x0b\x0c\x1c',
    "terminal sequences": "\x1b[2J\x07\u202e",
    "a long text": "x" * 50_000_000,
    "a long list": ["x" * 1_000] * 5_000,
    "a wide number": 10**10_000,
    "no number": float("nan"),
    "infinity": float("-inf"),
    "bytes": b"\xff\n",
    "an object without text": Untellable(),
    "a list of them": [Untellable()],
    "keys of other types": {(1, 2): 3, "\n": "\n"},
    "deep nesting": deep(),
}


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_breaks_a_json_line(logger: logging.Logger, name: str) -> None:
    """For any field value, logging raises nothing and writes one JSON line of bounded length that has the other fields."""
    stream = Stream()
    telemetry.configure_logging(format="json", stream=stream)
    telemetry.log.warning("link.lost", error=HOSTILE[name], server="here")
    (line,) = stream.getvalue().splitlines()
    read = json.loads(line, parse_constant=refuse)
    assert (read["level"], read["event"], read["server"]) == ("warning", "link.lost", "here")
    assert "error" in read
    assert len(line) < 100_000


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_breaks_a_text_line(logger: logging.Logger, name: str) -> None:
    """In text too it is one printable line, whose last field is the last one."""
    stream = Stream()
    telemetry.configure_logging(format="text", stream=stream)
    telemetry.log.warning("link.lost", error=HOSTILE[name], server="here")
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert line.endswith(" server=here")
    assert len(line) < 100_000


def test_what_is_invisible_is_written_out_in_text(logger: logging.Logger) -> None:
    """Blank letters and heaps of marks, which count as printable, hide nothing in fields, events and tracebacks."""
    hidden = "a\u3164b" + "\u0301" * 9
    stream = Stream()
    telemetry.configure_logging(format="text", stream=stream)
    telemetry.log.error("link.lost", exc_info=ValueError(hidden), error=hidden)
    logging.getLogger("toolbus.mine").warning(hidden)
    assert stream.getvalue().count("a\\u3164b") == 3
    assert "\u3164" not in stream.getvalue()
    assert "\u0301" * 5 not in stream.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_breaks_an_applications_logging(caplog: pytest.LogCaptureFixture, name: str) -> None:
    """With an application's own handlers it is one record with a message of one line."""
    with caplog.at_level(logging.INFO, logger="toolbus"):
        telemetry.log.warning("link.lost", error=HOSTILE[name], server="here")
    (record,) = [each for each in caplog.records if each.name == "toolbus"]
    assert record.getMessage().isprintable()
    assert record.getMessage().endswith(" server=here")


@pytest.mark.parametrize(
    "raised", [ValueError("x\n12:00:00.000 info     call.finished id=forged\n\x1b[2J"), Mute(), ValueError("y" * 9_000_000)]
)
def test_tracebacks_forge_no_lines(logger: logging.Logger, raised: Exception) -> None:
    """Every further line of an event with a traceback is indented and printable, and a message of megabytes is shortened."""
    stream = Stream()
    telemetry.configure_logging(format="text", stream=stream)
    telemetry.log.error("call.crashed", exc_info=raised, id="c1")
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("call.crashed id=c1")
    assert others
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert len(stream.getvalue()) < 100_000


def test_messages_of_other_loggers_forge_no_lines(logger: logging.Logger) -> None:
    """A logger below toolbus's own whose message has line breaks gives one line."""
    stream = Stream()
    telemetry.configure_logging(format="text", stream=stream)
    logging.getLogger("toolbus.mine").warning("plain\n%s", "12:00:00.000 info     call.finished")
    (line,) = stream.getvalue().splitlines()
    assert "plain\\n12:00" in line


async def test_lines_of_a_moment_are_written_together(logger: logging.Logger) -> None:
    """Within an event loop lines are collected for a moment and written in order by a thread; a warning does not wait."""
    stream = Stream()
    telemetry.configure_logging(format="json", stream=stream)
    for number in range(3):
        telemetry.log.info("call.finished", id=number)
    assert stream.writes == []
    await eventually(lambda: stream.getvalue().count("\n") == 3)
    assert len(stream.writes) == 1
    telemetry.log.info("call.finished", id=3)
    telemetry.log.warning("call.failed", id=4)
    await eventually(lambda: stream.getvalue().count("\n") == 5)
    assert [json.loads(line)["id"] for line in stream.getvalue().splitlines()] == [0, 1, 2, 3, 4]


async def test_a_reader_who_stops_holds_up_nobody(logger: logging.Logger) -> None:
    """When nobody reads the pipe, the loop goes on, what waits is bounded, and a line says how many others were dropped."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as stream:
        telemetry.configure_logging(format="json", stream=stream)
        for number in range(12_000):
            telemetry.log.info("call.finished", id=number, text="x" * 1_000)
            if number % 1_000 == 0:
                await asyncio.sleep(0)
        written: list[int] = []
        dropped = 0

        def read() -> None:
            nonlocal dropped
            while len(written) + dropped < 12_000:
                line = json.loads(lines.readline())
                if line["event"] == "log.dropped":
                    dropped += line["lines"]
                else:
                    written.append(line["id"])

        await asyncio.wait_for(asyncio.to_thread(read), 30)
        assert dropped > 0
        assert written == sorted(written)
        telemetry.log.info("call.finished", id="after")
        assert json.loads(await asyncio.to_thread(lines.readline))["id"] == "after"
        telemetry.configure_logging(format="json", stream=io.StringIO())


def test_lines_of_threads_and_loops_keep_their_order(logger: logging.Logger) -> None:
    """Threads with and without event loops of their own log at once: no line is lost or torn, and those of each are in order."""
    stream = Stream()
    telemetry.configure_logging(format="json", stream=stream)

    async def looping(name: str) -> None:
        for number in range(500):
            telemetry.log.info("call.finished", thread=name, number=number)
            await asyncio.sleep(0)

    def plain(name: str) -> None:
        for number in range(500):
            telemetry.log.info("call.finished", thread=name, number=number)

    threads = [threading.Thread(target=lambda name=f"l{each}": asyncio.run(looping(name))) for each in range(3)]
    threads += [threading.Thread(target=plain, args=(f"p{each}",)) for each in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    telemetry.flush_logging()
    found: dict[str, list[int]] = {}
    for line in stream.getvalue().splitlines():
        read = json.loads(line)
        found.setdefault(read["thread"], []).append(read["number"])
    assert found == {f"{kind}{each}": list(range(500)) for kind in "lp" for each in range(3)}


@pytest.mark.few(2)
@pytest.mark.parametrize("end", ["", "raise SystemExit", "raise ValueError", "telemetry.flush_logging(); os._exit(0)"])
def test_lines_survive_the_end_of_the_program(end: str) -> None:
    """A program that ends right after it logged, in any way, writes its last line once."""
    program = f"""
import asyncio, os
from toolbus.bus import telemetry
telemetry.configure_logging(format="json")
async def main():
    telemetry.log.info("worker.stopped", calls=1)
    {end}
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.count('"event":"worker.stopped"') == 1


def test_a_forked_child_writes_nothing_of_its_parent(logger: logging.Logger) -> None:
    """A child forked while lines wait writes its own lines only, and the parent's are written once."""
    program = """
import asyncio, os, sys
from toolbus.bus import telemetry
from toolbus.bus.telemetry import output
# The parent's line waits until the program ends, however long a fork takes.
output._PERIOD = 60.0
telemetry.configure_logging(format="json")
async def main():
    telemetry.log.info("call.finished", id="parent")
    if os.fork() == 0:
        telemetry.log.info("call.finished", id="child")
        telemetry.flush_logging()
        os._exit(0)
    os.wait()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert [json.loads(line)["id"] for line in done.stderr.splitlines()] == ["child", "parent"]


async def test_a_stream_that_raises_anything_gets_the_next_lines(logger: logging.Logger) -> None:
    """An application's own stream that fails once does not end the thread that writes."""

    class Failing(Stream):
        def write(self, text: str, /) -> int:
            super().write(text)
            if len(self.writes) == 1:
                raise RuntimeError("broken")
            return len(text)

    stream = Failing()
    telemetry.configure_logging(format="json", stream=stream)
    telemetry.log.info("call.finished", id="first")
    await eventually(lambda: len(stream.writes) == 1)
    telemetry.log.info("call.finished", id="second")
    await eventually(lambda: "second" in stream.getvalue())


def test_a_stream_that_fails_ends_no_call(logger: logging.Logger) -> None:
    """A closed stream, a pipe without a reader, and one that can't hold a letter raise nothing."""
    closed = io.StringIO()
    telemetry.configure_logging(format="text", stream=closed)
    closed.close()
    telemetry.log.error("link.lost")

    reading, writing = os.pipe()
    os.close(reading)
    broken = os.fdopen(writing, "w", buffering=1)
    telemetry.configure_logging(format="text", stream=broken)
    telemetry.log.error("link.lost")
    with pytest.raises(BrokenPipeError):
        broken.close()

    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    telemetry.configure_logging(format="text", stream=narrow)
    telemetry.log.error("link.lost", error="é")
    assert b"error=\\xe9" in narrow.buffer.getvalue()  # type: ignore[attr-defined]


def test_handlers_and_filters_beside_ours_get_every_event(logger: logging.Logger) -> None:
    """An application that adds a handler or a filter to the logger gets records with the fields, and our lines are written too."""
    stream, seen = Stream(), []
    telemetry.configure_logging(format="json", stream=stream)

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.toolbus["id"])  # type: ignore[attr-defined]

    logger.addHandler(Collecting())
    telemetry.log.info("call.finished", id="a")
    logger.addFilter(lambda record: record.toolbus["id"] != "b")
    telemetry.log.info("call.finished", id="b")
    telemetry.log.info("call.finished", id="c")
    assert seen == ["a", "c"]
    assert [json.loads(line)["id"] for line in stream.getvalue().splitlines()] == ["a", "c"]


@pytest.mark.parametrize("fields", [{}, {"id": "c"}, {"process": 1}, {"id": "c", "error": float("nan")}], ids=str)
@pytest.mark.parametrize("format", ["json", "text"])
def test_lines_of_one_of_several_processes_say_which(logger: logging.Logger, format: Any, fields: dict[str, Any]) -> None:
    """Each line has the number of its process once, whatever the event's own fields are."""
    stream = Stream()
    telemetry.configure_logging(format=format, stream=stream, process=4711)
    telemetry.log.info("call.finished", **fields)
    (line,) = stream.getvalue().splitlines()
    assert line.count("process") == 1
    assert ('"process":4711' if format == "json" else "process=4711") in line


@pytest.mark.parametrize("format", ["json", "text"])
def test_an_event_costs_few_calls(logger: logging.Logger, format: Any) -> None:
    """Logging the end of a call takes fewer than 90 calls of functions, so that a worker can log every call."""
    telemetry.configure_logging(format=format, stream=io.StringIO())
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    async def logged() -> None:
        telemetry.log.info("call.finished", **CALL)
        sys.setprofile(count)
        try:
            for _ in range(100):
                telemetry.log.info("call.finished", **CALL)
        finally:
            sys.setprofile(None)

    asyncio.run(logged())
    assert calls < 90 * 100


def run(program: str) -> str:
    """Run a program of Python, and return what it wrote."""
    program = f"import sys, logging; from toolbus.bus import telemetry\n{program}"
    done = subprocess.run([sys.executable, "-c", program], stdout=-1, stderr=-2, text=True, check=True, timeout=60)
    return done.stdout


def test_asking_whether_to_log_needs_no_slow_imports() -> None:
    """Neither structlog nor rich is imported before something is logged, which an application's start would wait for."""
    loaded = run("import toolbus; toolbus.ToolBus, toolbus.Worker; telemetry.logs(10); print(*sys.modules)")
    assert not {"structlog", "rich"} & set(loaded.split())


def test_an_applications_structlog_gets_the_events() -> None:
    """With structlog configured, events pass through its processors and its level, and nothing is written besides."""
    said = run("""
import structlog
structlog.configure([structlog.processors.JSONRenderer()], structlog.make_filtering_bound_logger(logging.INFO))
telemetry.log.info("call.finished", id="a")
telemetry.log.debug("call.finished", id="b")
structlog.configure([structlog.processors.LogfmtRenderer()], structlog.make_filtering_bound_logger(logging.ERROR))
telemetry.log.info("call.finished", id="c")
try:
    raise ValueError("x")
except ValueError:
    telemetry.log.exception("link.lost", id="d")
""")
    first, second = said.splitlines()
    assert json.loads(first) == {"event": "call.finished", "id": "a"}
    assert "id=d" in second


@pytest.mark.usefixtures("slow")
def test_an_applications_standard_logging_gets_the_events() -> None:
    """Without structlog configured, events are records of the logger ``toolbus``; without handlers, nothing is written."""
    logged = """telemetry.log.warning("link.lost", id="a"); telemetry.log.info("call.finished", id="b")"""
    assert run(logged) == ""
    assert run(f"logging.basicConfig(format='%(name)s %(message)s'); {logged}") == "toolbus link.lost id=a\n"


def test_a_tools_own_structlog_writes_lines_like_ours() -> None:
    """In a program of ours the events of ``structlog.get_logger()`` are lines of the same form."""
    said = run("""
import structlog
telemetry.configure_logging(format="json")
structlog.get_logger().bind(a=1).info("mine", b=2)
structlog.get_logger().debug("mine", b=3)
""")
    found = json.loads(said)
    assert (found["level"], found["event"], found["a"], found["b"]) == ("info", "mine", 1, 2)


def test_an_applications_structlog_stays_as_it_is() -> None:
    """A program that has configured structlog keeps its configuration, and our events are our lines."""
    said = run("""
import structlog
structlog.configure([structlog.processors.LogfmtRenderer()])
telemetry.configure_logging(format="json")
structlog.get_logger().info("mine", b=2)
telemetry.log.info("call.finished", id="a")
""")
    assert "b=2 event=mine" in said
    assert '"event":"call.finished"' in said
