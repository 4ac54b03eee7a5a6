"""An agent's process that writes down each step it takes, and kills itself at one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from toolbus import ToolBus
from toolbus.agent import Agent, ChatEndpoint
from toolbus.bus.broker.held import conversations
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Finished, Started, Text

# The scripts that an agent takes its steps by; others are sent by the clock.
SCRIPTS = {"held/write", "publish/share"}
# A killed process holds its conversation for so many seconds.
LEASE = 0.5


class Steps:
    """The steps that this process has taken, each with its number."""

    def __init__(self, trace: Path, deadly: str) -> None:
        self._file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._deadly = deadly
        self._taken: Counter[str] = Counter()

    def take(self, name: str) -> None:
        """Write a step down, and die if it is the last one."""
        self._taken[name] += 1
        step = f"{name} {self._taken[name]}"
        os.write(self._file, f"{step}\n".encode())
        if step == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(self, event: object) -> None:
        """Take an event of a call for a step; texts come in as many pieces as they like, so only the first of each call is one."""
        if not isinstance(event, ToolEvent) or not isinstance(event.event, (Started, Text, Finished)):
            return
        # The model gives the calls of each turn the same ids.
        name = f"{type(event.event).__name__} of {event.id} in turn {self._taken['model answered']}, event"
        if not self._taken[name]:
            self.take(name)


def watch(steps: Steps) -> None:
    """Make a step of everything that is sent to the server or the model, and of everything that they answer."""
    run, complete = Link.run, ChatEndpoint.complete

    def counted(self: Link, script: Any, keys: Any, args: Any, on_reply: Any = None, **options: Any) -> None:
        # A held document is taken by the next process, and then written by its holder.
        name = f"{script.name} by {args[4]}" if script.name == "held/write" else script.name

        def answered(reply: Any) -> None:
            steps.take(f"{name} answered")
            if on_reply is not None:
                on_reply(reply)

        if script.name not in SCRIPTS:
            run(self, script, keys, args, on_reply, **options)
            return
        run(self, script, keys, args, answered, **options)
        self.flush()
        steps.take(f"{name} sent")

    async def asked(self: ChatEndpoint, body: Any, on_text: Any = None) -> Any:
        steps.take("model to be asked")
        reply = await complete(self, body, on_text)
        steps.take("model answered")
        return reply

    Link.run = counted  # type: ignore[method-assign,assignment]
    ChatEndpoint.complete = asked  # type: ignore[method-assign]


async def main(url: str, namespace: str, model: str, conversation: str, steps: Steps) -> None:
    """Ask one question, and print its answer."""
    async with ToolBus(url, namespace=namespace) as bus, ChatEndpoint(model, "k") as chat:
        await bus.wait_for_tool("note", timeout=60.0)
        agent = Agent(chat, bus.executor(model="m", session=conversation), conversation=conversation)
        answer = await agent.ask(f"task {conversation}", steps.heard, idempotency_key="q")
        steps.take("answer returned")
        sys.stdout.write(answer.text)


if __name__ == "__main__":
    conversations._LONGEST_LEASE = LEASE
    taken = Steps(Path(sys.argv[5]), sys.argv[6])
    watch(taken)
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], taken))
