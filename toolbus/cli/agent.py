"""``agent``: a model answers a question with the tools of the bus."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from toolbus.cli.common import Failure, Seconds, fail, one_line, output_option, print_json, settings_of
from toolbus.cli.prompt import Person
from toolbus.display import visible

if TYPE_CHECKING:
    from toolbus.agent import AgentEvent, Answer, ChatEndpoint
    from toolbus.client.tools.view import ToolView
    from toolbus.settings import Settings
    from toolbus.toolkit.walk import Walk

_MOST_SHOWN = 200


class _Unset(Failure):
    """Something must be set first: exit code 2."""

    exit_code = 2


@click.command("agent")
@click.argument("question")
@click.option("--model", help="The model's name (OPENAI_MODEL).")
@click.option("--base-url", help="The endpoint (OPENAI_BASE_URL; OpenAI's own).")
@click.option("--system", help="Instructions for the model, in place of ours.")
@click.option("--group", "groups", multiple=True, help="Only tools in this group (may be repeated).")
@click.option("--category", "categories", multiple=True, help="Only tools of this category (may be repeated).")
@click.option("--tool", "names", multiple=True, help="Only this tool (may be repeated).")
@click.option("--action", "actions", multiple=True, help="Walk the toolkit graph from this action (may be repeated).")
@click.option("--operator", help="Walk it as this operator of a published preset: its instruction, actions, threshold and hops.")
@click.option("--walk", is_flag=True, help="Walk it from the actions that fit QUESTION best.")
@click.option("--threshold", type=click.FloatRange(0, 1), help="Lowest score of an edge when walking (the operator's, or 0.5).")
@click.option("--hops", type=click.IntRange(0, 100), help="How many next actions are shown when walking (the operator's, or 1).")
@click.option("--user", default="", help="The tenant on whose behalf tools run.")
@click.option("--session", default="", help="The agent's session.")
@click.option("--turns", type=click.IntRange(min=1), default=12, show_default=True, help="How often the model is asked at most.")
@click.option("--timeout", type=Seconds(), default=300.0, show_default=True, help="Seconds for all.")
@click.option("--yes", is_flag=True, help="Allow tools that want a person's permission; otherwise they are asked for on a terminal.")
@output_option
@click.pass_context
def agent_command(ctx: click.Context, /, question: str, output: str, **options: Any) -> None:
    """Let a model answer QUESTION (- reads it from standard input) with the tools that are there.

    Takes any endpoint that speaks like OpenAI's chat completions; OPENAI_API_KEY is its key. The
    model's words go to standard output and what tools do to standard error, both as they come. The
    exit code is 0 for an answer, 1 when there is none, 2 when something is not set.

    \b
    Examples:
      toolbus agent "what is 2**64, and is it prime?" --model gpt-5-mini
      toolbus agent "chart the orders of March" --walk --hops 1
      OPENAI_BASE_URL=http://localhost:11434/v1 OPENAI_API_KEY=none toolbus agent "tell a pun" --model qwen3
    """
    settings = settings_of(ctx)
    text = sys.stdin.read() if question == "-" else question
    screen = _Screen(quiet=output == "json")
    if not text.strip():
        raise click.UsageError("QUESTION is empty")
    endpoint, model = _endpoint(options)
    answer = asyncio.run(_ask(settings, endpoint, model, text, screen, options))
    screen.end()
    if output == "json":
        print_json(answer)
    if answer.reason == "turns":
        fail(f"stopped: no answer in {answer.turns} turns ({answer.calls} calls, {answer.failed} failed); --turns allows more")
    if answer.reason == "time":
        fail(f"stopped: no answer in {options['timeout']:g} s ({answer.calls} calls, {answer.failed} failed); --timeout allows more")
    if answer.reason == "length":
        fail("the answer is cut off: the endpoint's limit on its length was reached")
    if not answer.text.strip():
        fail("the model said nothing")


def _endpoint(options: dict[str, Any]) -> tuple[ChatEndpoint, str]:
    from toolbus.results import ConfigurationError

    key = os.environ.get("OPENAI_API_KEY", "").strip()
    model = (options["model"] or os.environ.get("OPENAI_MODEL", "")).strip()
    if not key:
        raise _Unset(
            "set OPENAI_API_KEY to your endpoint's key (any word for one that needs none), and OPENAI_BASE_URL unless it is OpenAI"
        )
    if not model:
        raise _Unset("which model? pass --model or set OPENAI_MODEL")
    try:
        from toolbus.agent import OPENAI, ChatEndpoint
    except ImportError:
        raise _Unset("the agent needs httpx: pip install 'toolbus[agent]'") from None
    try:
        return ChatEndpoint(options["base_url"] or os.environ.get("OPENAI_BASE_URL") or OPENAI, key), model
    except ConfigurationError as error:
        raise _Unset(str(error)) from None


async def _ask(settings: Settings, endpoint: ChatEndpoint, model: str, question: str, screen: _Screen, options: dict[str, Any]) -> Answer:
    from toolbus import ToolBus
    from toolbus.agent import SYSTEM, Agent

    system = SYSTEM if options["system"] is None else options["system"]
    try:
        async with endpoint, ToolBus(settings=settings) as bus:
            executor = bus.executor(
                tools=_chosen(bus.tools, options),
                user=options["user"],
                session=options["session"],
                model=model,
                confirmer=(lambda request: True) if options["yes"] else Person(screen.ask).ask,
            )
            walk, instruction = _walk(executor.tools, question, options)
            system = "\n\n".join(part for part in (system, instruction) if part)
            agent = Agent(endpoint, executor, system=system, max_turns=options["turns"], max_seconds=options["timeout"], walk=walk)
            return await agent.ask(question, screen.show)
    except BaseException:
        screen.end()
        raise


def _chosen(tools: ToolView, options: dict[str, Any]) -> ToolView:
    """The tools that --group, --category and --tool leave."""
    from toolbus.results import ConfigurationError

    selection = {kind: options[kind] for kind in ("groups", "categories", "names") if options[kind]}
    found = tools.filter(**selection)
    if selection and not found:
        chosen = ", ".join(f"{kind} {' '.join(wanted)}" for kind, wanted in selection.items())
        raise ConfigurationError(f"no tool is there of {chosen}; `toolbus tools` lists what there is")
    return found


def _walk(tools: ToolView, question: str, options: dict[str, Any]) -> tuple[Walk | None, str]:
    """Where the agent walks, if it does, and what an operator tells it."""
    from toolbus.results import ConfigurationError

    if not (options["walk"] or options["actions"] or options["operator"]):
        return None, ""
    try:
        from toolbus.toolkit.entries import OperatorEntry
        from toolbus.toolkit.live import operator_of, published, starts_of
        from toolbus.toolkit.walk import Walk
    except ImportError as error:
        raise ConfigurationError(f"walking needs {error.name}: pip install 'toolbus[toolkit]'") from None
    operator = operator_of(tools.catalogue, options["operator"]) if options["operator"] else OperatorEntry("", hops=1)
    wanted = options["actions"] or operator.actions or [question]
    starts = starts_of(published(tools.catalogue), wanted)
    if not starts:
        raise ConfigurationError(f"no action of the toolkit graph fits {', '.join(wanted)}; `toolbus toolkit show` lists it")
    threshold = operator.threshold if options["threshold"] is None else options["threshold"]
    return Walk(
        tools, starts, threshold=threshold, hops=operator.hops if options["hops"] is None else options["hops"]
    ), operator.instruction


class _Screen:
    """The model's words on standard output; on standard error what tools do, each line under its tool's name."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._open = ""  # whose line is not ended: "model", or a call's id

    def show(self, event: AgentEvent) -> None:
        """Show an event."""
        from toolbus.agent import Retrying, Said

        if isinstance(event, Said):
            if not self._quiet:
                self._print("model", event.text)
        elif isinstance(event, Retrying):
            self._line(f"{event.error}; trying again in {event.seconds:g} s")
        else:
            self._call(event)

    def end(self) -> None:
        """End the line that is open."""
        if self._open:
            click.echo(err=self._open != "model")
        self._open = ""

    def ask(self, text: str) -> None:
        """Put a question to the person."""
        self.end()
        click.echo(f"{text}\n[y/N] ", nl=False, err=True)

    def _call(self, told: Any) -> None:
        from toolbus import Progress
        from toolbus.client.executor.observers import Requested
        from toolbus.events import Asked, Finished, Reset, Text

        event = told.event
        if isinstance(event, Requested):
            import msgspec

            arguments = msgspec.json.encode(event.arguments, enc_hook=str).decode()
            self._line(f"→ {told.tool} {one_line(arguments, _MOST_SHOWN)}")
        elif isinstance(event, Text):
            self._print(f"{told.index} {told.tool}", event.text)
        elif isinstance(event, Progress):
            total = f"/{event.total:g}" if event.total else ""
            self._line(f"  {told.tool} [{event.done:g}{total}] {event.message}")
        elif isinstance(event, Asked):
            self._line(
                f"  {told.tool} asks: {visible(event.question)}; it waits {math.ceil(event.timeout)} s: toolbus confirm allow {event.id}"
            )
        elif isinstance(event, Reset):
            self._line(f"  {told.tool}: attempt {event.attempt} starts anew")
        elif isinstance(event, Finished) and event.result.error is not None:
            self._line(f"✗ {told.tool} {one_line(str(event.result.error), _MOST_SHOWN)}")
        elif isinstance(event, Finished):
            self._line(f"✓ {told.tool} {one_line(event.result.observation, _MOST_SHOWN)}")

    def _print(self, whose: str, text: str) -> None:
        if self._open != whose:
            self.end()
            if whose != "model":
                click.secho(f"  {_visible(whose.partition(' ')[2])}: ", dim=True, nl=False, err=True)
        shown = _visible(text)
        if whose == "model":
            click.echo(shown, nl=False)
        else:
            click.secho(shown, dim=True, nl=False, err=True)
        if shown:
            self._open = "" if shown.endswith("\n") else whose

    def _line(self, text: str) -> None:
        self.end()
        click.secho(_visible(text).replace("\n", " "), dim=True, err=True)


def _visible(text: str) -> str:
    """The text without what could command a terminal."""
    return "".join(character for character in text if character in "\n\t" or not (character < " " or "\x7f" <= character <= "\x9f"))
