"""``agent``: let a model answer a question with the tools of the bus."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from toolbus import Progress, ToolBus
from toolbus.bus import telemetry
from toolbus.bus.client.executor.observers import Requested
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.results import ConfigurationError
from toolbus.operations.cli.calls import terminal_prompt
from toolbus.operations.cli.command import Categories, Groups, Hops, Names, Output, Seconds, Share, User, command, option
from toolbus.operations.cli.common import read_text, settings_with_server
from toolbus.operations.cli.failing import WrongUsage, fail, needing, wrong_if
from toolbus.operations.cli.output import print_json, print_line

if TYPE_CHECKING:
    from toolbus.agent import AgentEvent, Answer, ChatEndpoint
    from toolbus.bus.client.tools.view import ToolView
    from toolbus.bus.values.settings import Settings
    from toolbus.toolkit.learning import Recorder
    from toolbus.toolkit.live import Walk

_MOST_SHOWN = 200


_NO_ANSWER = {
    "turns": "stopped: no answer in {answer.turns} turns ({answer.calls} calls, {answer.failed} failed); --turns allows more",
    "time": "stopped: no answer in {options.timeout:g} s ({answer.calls} calls, {answer.failed} failed); --timeout allows more",
    "length": "the answer is cut off: the endpoint's limit on its length was reached",
    "full": "stopped: the question is over the bound of a conversation; ask for less at once",
}
"""By the reason for which a model's run ended, what to say of it."""

_WALKS = ("walk", "actions", "operator")


class Options(NamedTuple):
    """The options of how the model asks, and of the tools it is shown."""

    model: Annotated[str | None, option("The model's name (OPENAI_MODEL).")]
    base_url: Annotated[str | None, option("The endpoint (OPENAI_BASE_URL; OpenAI's own).")]
    system: Annotated[str | None, option("Instructions for the model, instead of the default ones.")]
    groups: Groups
    categories: Categories
    names: Names
    actions: Annotated[tuple[str, ...], option("Walk the toolkit graph from this action (may be repeated).", "--action")]
    operator: Annotated[
        str | None, option("Walk the graph as this operator of a published preset: its instruction, actions, threshold and hops.")
    ]
    walk: Annotated[bool, option("Walk the graph from the actions that fit QUESTION best.")]
    threshold: Annotated[Share | None, option("Lowest score of an edge when walking (the operator's, or 0.5).", needs=_WALKS)]
    hops: Annotated[Hops | None, option("How many next actions are shown when walking (the operator's, or 1).", needs=_WALKS)]
    record: Annotated[Path | None, option("Record the calls when walking, to learn scores from: .jsonl, .db or .sqlite.")]
    explore: Annotated[Share, option("Probability that a tool below the threshold is shown all the same (0).", default=0.0, needs=_WALKS)]
    user: User
    session: Annotated[str | None, option("The agent's session (the conversation's id, if it is kept; else none).")]
    conversation: Annotated[
        str | None, option("Keep the conversation under this id, or go on with it; see `toolbus operate conversations`.")
    ]
    idempotency_key: Annotated[str | None, option("Ask once, however often the command is run with this key. Needs --conversation.")]
    turns: Annotated[int, option("Most requests to the model.", type=click.IntRange(min=1), default=12)]
    timeout: Annotated[float, option("Seconds for the whole answer.", type=Seconds(), default=300.0)]
    yes: Annotated[bool, option("Confirm all calls that need confirmation; otherwise you are asked on a terminal.")]

    @property
    def walks(self) -> bool:
        """True if the model is shown what the graph recommends."""
        return bool(self.walk or self.actions or self.operator)


@command("agent")
def agent_command(question: str | None, options: Options, output: Output) -> None:
    """Let a model answer QUESTION with tools.

    QUESTION may be - to read it from standard input. Works with any endpoint that is compatible with
    OpenAI's chat completions; OPENAI_API_KEY is its key.
    The model's text goes to standard output and the progress of tools to standard error, both as they
    arrive. The exit code is 0 with an answer, 1 without one, and 2 when a setting is missing.

    With --conversation the server keeps the messages. After a crash the same command goes on where the
    last one was: nothing that the model said is asked for again, and no call is run again. Without
    QUESTION it finishes what was left, or prints the latest answer.

    \b
    Examples:
      toolbus agent "what is 2**64, and is it prime?" --model gpt-5-mini
      toolbus agent "chart the orders of March" --walk --hops 1
      toolbus agent "and those of April?" --conversation orders
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_API_KEY=none toolbus agent "tell a pun" --model qwen3
    """
    settings = settings_with_server()
    telemetry.configure_export("toolbus-agent")
    text = read_text("-") if question == "-" else question
    screen = _Screen(quiet=output == "json")
    _check_usage(text, options)
    endpoint, model = _endpoint(options)
    try:
        answer = asyncio.run(_ask(settings, endpoint, model, text, screen, options))
    finally:
        screen.end()
    if output == "json":
        print_json(answer)
    if answer.reason in _NO_ANSWER or not answer.text.strip():
        fail(_NO_ANSWER.get(answer.reason, "the model sent no text").format(answer=answer, options=options))


def _check_usage(text: str | None, options: Options) -> None:
    for name, value in (("--conversation", options.conversation), ("--idempotency-key", options.idempotency_key)):
        wrong_if(value == "", f"{name} is empty; leave it out to have none")
    wrong_if(text is None and not options.conversation, "Missing argument 'QUESTION'; only --conversation goes without one")
    wrong_if(text is not None and not text.strip(), "QUESTION is empty")
    wrong_if(options.idempotency_key and (text is None or not options.conversation), "--idempotency-key needs QUESTION and --conversation")
    wrong_if(options.walk and text is None, "--walk needs QUESTION; name the actions with --action")


def _endpoint(options: Options) -> tuple[ChatEndpoint, str]:
    try:
        with needing("agent", "the agent"):
            from toolbus.agent.endpoint import endpoint_of
        return endpoint_of(os.environ, base_url=options.base_url or "", model=options.model or "")
    except ConfigurationError as error:
        raise WrongUsage(str(error)) from None


async def _ask(settings: Settings, endpoint: ChatEndpoint, model: str, question: str | None, screen: _Screen, options: Options) -> Answer:
    from toolbus.agent import SYSTEM, Agent

    system = SYSTEM if options.system is None else options.system
    async with endpoint, ToolBus(settings=settings) as bus, _recorder(bus, options) as recorder:
        executor = bus.executor(
            tools=_chosen(bus.tools, options),
            user=options.user,
            session=(options.conversation or "") if options.session is None else options.session,
            model=model,
            confirmer=(lambda request: True) if options.yes else terminal_prompt(screen.ask),
        )
        walk, instruction = _walk(executor.tools, question or "", recorder, options)
        system = "\n\n".join(part for part in (system, instruction) if part)
        agent = Agent(
            endpoint,
            executor,
            system=system,
            walk=walk,
            conversation=options.conversation,
            max_turns=options.turns,
            max_seconds=options.timeout,
        )
        if question is not None:
            return await agent.ask(question, screen.show, idempotency_key=options.idempotency_key)
        answer = await agent.resume(screen.show)
        if answer is None:
            fail(f"there is no conversation {options.conversation!r}; begin it with a QUESTION")
        return answer


def _chosen(tools: ToolView, options: Options) -> ToolView:
    """Return the tools that --group, --category and --tool select."""
    selection = {kind: value for kind in ("groups", "categories", "names") if (value := getattr(options, kind))}
    found = tools.filter(**selection)
    if selection and not found:
        chosen = ", ".join(f"{kind} {' '.join(wanted)}" for kind, wanted in selection.items())
        raise ConfigurationError(f"there is no tool with {chosen}; `toolbus tools` lists the available tools")
    return found


@asynccontextmanager
async def _recorder(bus: ToolBus, options: Options) -> AsyncIterator[Recorder | None]:
    """Return what records calls into the file of --record, if any."""
    if options.record is None:
        yield None
        return
    if not options.walks:
        raise ConfigurationError("--record needs --walk, --action or --operator: what is learned are the scores of the graph's edges")
    with needing("toolkit", "walking"):
        from toolbus.toolkit.learning import Recorder, open_store
    with open_store(options.record) as store:
        with Recorder(store, bus.events) as recorder:
            yield recorder
        if recorder.dropped:
            print_line(f"{recorder.dropped} calls could not be recorded in {options.record}; the log says why", err=True)


def _walk(tools: ToolView, question: str, recorder: Recorder | None, options: Options) -> tuple[Walk | None, str]:
    """Return the agent's walk through the graph, if any, and the operator's instruction."""
    if not options.walks:
        return None, ""
    with needing("toolkit", "walking"):
        from toolbus.toolkit.live import Walk, operator_of, published, starts_of
        from toolbus.toolkit.presets import OperatorEntry
    operator = operator_of(tools.catalogue, options.operator) if options.operator else OperatorEntry("", hops=1)
    wanted = options.actions or operator.actions or [question]
    starts = starts_of(published(tools.catalogue), wanted)
    if not starts:
        raise ConfigurationError(f"no action of the toolkit graph fits {', '.join(wanted)}; `toolbus toolkit show` lists it")
    threshold = operator.threshold if options.threshold is None else options.threshold
    hops = operator.hops if options.hops is None else options.hops
    walk = Walk(tools, starts, threshold=threshold, hops=hops, recorder=recorder, explore=options.explore)
    return walk, operator.instruction


class _Screen:
    """Prints the model's text to standard output, and the progress of tools to standard error, each line with its tool's name."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._open = ""  # source of the unfinished line: "model", or a call's id

    def show(self, event: AgentEvent) -> None:
        """Show an event."""
        from toolbus.agent import ModelText, Retrying

        if isinstance(event, ModelText):
            if not self._quiet:
                self._print("model", event.text)
        elif isinstance(event, Retrying):
            self._line(f"{event.error}; trying again in {event.seconds:g} s")
        else:
            self._call(event)

    def end(self) -> None:
        """End the unfinished line."""
        if self._open:
            print_line(err=self._open != "model")
        self._open = ""

    def ask(self, text: str) -> None:
        """Print a question."""
        self.end()
        print_line(f"{text}\n[y/N] ", nl=False, err=True)

    def _call(self, seen: Any) -> None:
        from toolbus.bus.values.events import Asked, Finished, Reset, Text

        event = seen.event
        if isinstance(event, Requested):
            import msgspec

            arguments = msgspec.json.encode(event.arguments, enc_hook=str).decode()
            self._line(f"→ {seen.tool} {one_line(arguments, _MOST_SHOWN)}")
        elif isinstance(event, Text):
            self._print(f"{seen.index} {seen.tool}", event.text)
        elif isinstance(event, Progress):
            total = f"/{event.total:g}" if event.total else ""
            self._line(f"  {seen.tool} [{event.done:g}{total}] {event.message}")
        elif isinstance(event, Asked):
            self._line(
                f"  {seen.tool} asks: {visible(event.question)}; it waits {math.ceil(event.timeout)} s: toolbus confirm allow {event.id}"
            )
        elif isinstance(event, Reset):
            self._line(f"  {seen.tool}: attempt {event.attempt} starts from the beginning")
        elif isinstance(event, Finished) and event.result.error is not None:
            self._line(f"✗ {seen.tool} {one_line(str(event.result.error), _MOST_SHOWN)}")
        elif isinstance(event, Finished):
            self._line(f"✓ {seen.tool} {one_line(event.result.observation, _MOST_SHOWN)}")

    def _print(self, whose: str, text: str) -> None:
        is_tool = whose != "model"
        if self._open != whose:
            self.end()
            if is_tool:
                print_line(f"  {whose.partition(' ')[2]}: ", dim=True, nl=False, err=True)
        print_line(text, dim=is_tool, nl=False, err=is_tool)
        if text:
            self._open = "" if text.endswith("\n") else whose

    def _line(self, text: str) -> None:
        self.end()
        print_line(text.replace("\n", " "), dim=True, err=True)
