"""``Job``: a task that this process runs: claimed, told of, guarded, metered and ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from toolbus.agent import ChatEndpoint, EndpointError
from toolbus.agent.reply import Reply
from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import MOST_LINE, MOST_LINES, ClaimedCreation, CreationStatus, Spent
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.support.waiting import cancelled, either
from toolbus.bus.telemetry.background import keep_running
from toolbus.bus.values.results import BrokerError, ErrorInfo, ToolbusError, ToolResult
from toolbus.platform.coding.options import Deployment, Model

if TYPE_CHECKING:
    from toolbus.bus.broker.held.creations import Creations

# A token of a text has about so many characters, where the endpoint does not count them.
_CHARACTERS = 4
_MOST_TOKENS = 2**40


class OverBudget(EndpointError):
    """A task has cost as much as it may."""


class MeteredEndpoint(ChatEndpoint):
    """An endpoint that counts tokens and prices of one task, and answers no more when the task has had enough.

    Args:
        model: the endpoint and the model.
        deployment: says what a task may cost, and the models' prices.
        job: the task, which is told of the cost.
        guard: says whether the task goes round in a loop.
    """

    def __init__(self, model: Model, deployment: Deployment, job: Job, guard: Guard) -> None:
        super().__init__(model.base_url, model.api_key)
        self._model = model.name
        self._options, self._prices = deployment.options, deployment.prices
        self._job = job
        self._guard = guard
        self._spent = job.creation.spent

    async def complete(self, body: Mapping[str, Any], on_text: Callable[[str], object] = lambda text: None) -> Reply:
        """Return one chat completion.

        Raises:
            OverBudget: the task has cost as much as it may, or goes round in a loop.
            EndpointError: there is no complete answer.
        """
        before, options = self._spent, self._options
        if self._guard.looping:
            raise OverBudget(self._guard.looping)
        if before.tokens >= options.tokens:
            raise OverBudget(f"the task has used {before.tokens:,} tokens, and may use {options.tokens:,}")
        if options.price and before.price >= round(options.price * 1e6):
            raise OverBudget(f"the task has cost {before.price / 1e6:.2f}, and may cost {options.price:.2f}")
        reply = await super().complete({**body, "stream_options": {"include_usage": True}}, on_text)
        prompt, completion = _tokens(body, reply)
        price = before.price + self._prices.price(self._model, prompt, completion)
        self._spent = Spent(before.prompt_tokens + prompt, before.completion_tokens + completion, price)
        self._job.spent(self._spent)
        return reply


def _tokens(body: Mapping[str, Any], reply: Reply) -> tuple[int, int]:
    """Return the tokens of a request and of its answer, as the endpoint counted them or about."""
    usage = reply.usage if isinstance(reply.usage, Mapping) else {}
    counted = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    said = len(msgspec.json.encode(body)), len(msgspec.json.encode(reply.message()))
    prompt, completion = (
        count if type(count) is int and 0 <= count < _MOST_TOKENS else about // _CHARACTERS
        for count, about in zip(counted, said, strict=True)
    )
    return prompt, completion


# The lease is renewed so often.
_RENEWALS = 3
_MOST_WAITING = MOST_LINES


class Job:
    """A task that this process runs.

    Attributes:
        creation: the task as it was claimed.
        cancelled: whether somebody asked for its end.
        lost: whether another process runs it now.
    """

    def __init__(self, creations: Creations, claimed: ClaimedCreation) -> None:
        self._creations = creations
        self._claimed = claimed
        self.creation = claimed.creation
        self._first = claimed.creation.lines
        self._lines: list[str] = []
        self._progress: str | None = None
        self._spent: Spent | None = None
        self._news = asyncio.Event()
        self.cancelled = False
        self.lost = False

    def log(self, line: str) -> None:
        """Add a line to the task's log. Returns at once; beyond some hundred that wait, the oldest are dropped."""
        for each in (line.splitlines() or [""])[:_MOST_WAITING]:
            self._lines.append(each[:MOST_LINE])
        while len(self._lines) > _MOST_WAITING:
            del self._lines[0]
            self._first += 1
        self._news.set()

    def progress(self, text: str) -> None:
        """Tell what it does now. Returns at once."""
        self._progress = " ".join(text.split())[:MOST_LINE]
        self._news.set()

    def spent(self, spent: Spent) -> None:
        """Tell its whole cost. Returns at once."""
        self._spent = spent
        self._news.set()

    async def keep(self) -> None:
        """Write what is told and renew the lease, until the task is cancelled or lost.

        Raises:
            BrokerError: the server refuses.
        """
        while not (self.cancelled or self.lost):
            await self.write()
            if self.cancelled or self.lost:
                return
            # Until there is something to tell, something changes, or it is time to renew.
            seen = self._creations.news.count
            await either(self._creations.news.wait(seen, self._creations.lease / _RENEWALS), self._news.wait())
            # What is told in one moment goes together.
            await asyncio.sleep(0.02)

    async def write(self) -> None:
        """Write what was told until now, and renew the lease.

        Raises:
            BrokerError: the server refuses.
        """
        self._news.clear()
        first, lines = self._first, tuple(self._lines)
        answer = await self._creations.write(self._claimed, first=first, lines=lines, progress=self._progress, spent=self._spent)
        self.cancelled = answer == "cancel"
        self.lost = answer == "lost"
        # The oldest may have been dropped meanwhile.
        written = max(0, first + len(lines) - self._first)
        del self._lines[:written]
        self._first += written

    async def end(self, status: CreationStatus, result: str, delay: float = 0.0) -> bool:
        """End it, and return whether that was written: a task that can't be ended goes on elsewhere when its lease ends."""
        try:
            await self.write()
            return await self._creations.end(self._claimed, status, result, delay=delay)
        except BrokerError as error:
            telemetry.log.warning("creation.not_ended", id=self.creation.id, error=str(error))
            return False


# The same calls with the same answers may be made so often in a row.
_REPEATS = 5
# Calls in a row of which a repetition may consist.
_LONGEST = 3
# Refusals in a row after which the task ends.
_REFUSALS = 3
_MOST_SHOWN = 160
# Tools whose second run may do something else than the first.
_ONCE = {"run_in_uv", "run_in_docker"}

_INTERRUPTED = ErrorInfo(
    "outcome_unknown",
    "interrupted",
    "the coding agent's process ended while this call ran, so it may have taken effect, or a part of it; look before you make it again",
)
_REPEATED = ErrorInfo(
    "tool_error",
    "repeated",
    f"this call was made {_REPEATS} times in a row with the same answer, or in turn with the same others. Do something else, or end the "
    "task and say why",
)


class Guard:
    """Middleware around a task's tools.

    Args:
        job: whose log tells of the calls.
        marks: folder of marks of the calls that have begun, one file each.

    Attributes:
        looping: why the task is to end; empty unless its model repeats itself although it was told so.
    """

    def __init__(self, job: Job, marks: Path) -> None:
        self._job = job
        self._marks = marks
        self._last: deque[tuple[str, str]] = deque(maxlen=_REPEATS * _LONGEST)
        self._refused = 0
        self.looping = ""

    async def __call__(self, call: ToolCall, next: Next) -> ToolResult:
        """Let a call pass, unless it was interrupted before or is repeated without end."""
        given = msgspec.json.encode({name: value for name, value in call.arguments.items() if name != "content"}).decode()
        said = f"{call.tool} {given if len(given) <= _MOST_SHOWN else f'{given[:_MOST_SHOWN]}…'}"
        if await self._begun_before(call):
            self._job.log(f"{said}: interrupted before, not run again")
            return ToolResult.fail(_INTERRUPTED)
        same = msgspec.json.encode((call.tool, call.arguments)).decode()
        if self._repeats(same):
            self._job.log(f"{said}: repeated, refused")
            self._refused += 1
            if self._refused >= _REFUSALS:
                self.looping = f"its model repeats itself, with {call.tool} at last"
            return ToolResult.fail(_REPEATED)
        self._refused = 0
        self._job.progress(call.tool)
        self._job.log(f"{said} …")
        result = await next(call)
        self._job.log(f"{call.tool}: {'ok' if result.success else result.error} {_line(result)}".rstrip())
        self._last.append((same, _line(result)))
        return result

    def _repeats(self, call: str) -> bool:
        """Return whether a call goes on with a row of calls that was made again and again, each with the same answer."""
        made = list(self._last)
        for length in range(1, _LONGEST + 1):
            row = made[-_REPEATS * length :]
            if len(row) == _REPEATS * length and row == row[:length] * _REPEATS and row[0][0] == call:
                # The next one of the same row is to be known, too.
                self._last.append(row[0])
                return True
        return False

    async def _begun_before(self, call: ToolCall) -> bool:
        """Mark that a call begins; return whether one with its key has begun before."""
        if call.tool not in _ONCE and call.arguments.get("mode") != "append":
            return False
        if not call.idempotency_key or call.arguments.get("mode") in {"read", "stop"}:
            return False
        name = hashlib.blake2b(call.idempotency_key.encode(), digest_size=16).hexdigest()
        await asyncio.to_thread(self._marks.mkdir, mode=0o700, parents=True, exist_ok=True)
        try:
            await asyncio.to_thread((self._marks / name).touch, exist_ok=False)
        except FileExistsError:
            return True
        return False


def _line(result: ToolResult) -> str:
    return " ".join((result.output or "").split())[-_MOST_SHOWN:]


# Tasks whose processes died are looked for so often.
_LOOKS = 3


class Outcome(NamedTuple):
    """The end of a run: ``queued`` to be tried again after ``delay`` seconds."""

    status: CreationStatus
    result: str
    delay: float = 0.0


class Puller:
    """Runs the tasks of a namespace.

    Args:
        creations: the tasks.
        worker: who runs them, for people.
        run: runs one task to its end; it is cancelled when the task is, or when another process runs it.
        at_once: most tasks that run at once.
        forget: called with the id of a task that has ended, when nobody will go on with it.
    """

    def __init__(
        self,
        creations: Creations,
        worker: str,
        run: Callable[[Job], Awaitable[Outcome]],
        at_once: int,
        forget: Callable[[str], Awaitable[object]],
    ) -> None:
        self._creations = creations
        self._worker = worker
        self._run = run
        self._at_once = at_once
        self._forget = forget
        self._jobs: set[asyncio.Task[None]] = set()
        self._pulling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to claim tasks."""
        self._pulling = asyncio.create_task(keep_running("tasks", self._pull, every=self._creations.lease / _LOOKS))

    async def aclose(self) -> None:
        """Claim nothing more, and give back what runs: another process goes on with it."""
        await cancelled(*self._jobs, *([] if self._pulling is None else [self._pulling]))

    async def _pull(self) -> None:
        while True:
            seen = self._creations.news.count
            claimed = None
            try:
                claimed = await self._creations.claim(self._worker) if len(self._jobs) < self._at_once else None
            except BrokerError as error:
                telemetry.log.warning("creation.not_claimed", error=str(error))
            if claimed is None:
                await self._rest(seen)
                continue
            job = asyncio.create_task(self._work(Job(self._creations, claimed)))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)

    async def _rest(self, seen: int) -> None:
        """Wait until there may be a task: for news while there is room, else until one of those that run ends."""
        pause = self._creations.lease / _LOOKS
        if len(self._jobs) >= self._at_once:
            await asyncio.wait(self._jobs, return_when=asyncio.FIRST_COMPLETED)
            return
        with contextlib.suppress(BrokerError):
            await self._creations.news.wait(seen, pause)

    async def _work(self, job: Job) -> None:
        id = job.creation.id  # noqa: A001 - it is one
        telemetry.log.info("creation.started", id=id, attempt=job.creation.attempts)
        try:
            outcome = await self._outcome(job)
        except asyncio.CancelledError:
            await asyncio.shield(job.end("queued", ""))
            telemetry.log.info("creation.given_back", id=id)
            raise
        if outcome is None:
            telemetry.log.warning("creation.lost", id=id)
            return
        written = await job.end(outcome.status, outcome.result, outcome.delay)
        telemetry.log.info("creation.ended", id=id, status=outcome.status)
        if written and outcome.status != "queued":
            await self._forget(id)

    async def _outcome(self, job: Job) -> Outcome | None:
        """Run a task beside its lease; None when another process runs it now."""
        running, _ = await either(self._run(job), job.keep())
        if running.cancelled():
            return Outcome("cancelled", "cancelled while it ran") if job.cancelled else None
        if (error := running.exception()) is None:
            return running.result()
        if not isinstance(error, ToolbusError):
            telemetry.log.error("creation.failed", error=reason_of(error), exc_info=error)
        return Outcome("failed", f"the coding agent failed: {reason_of(error)}")
