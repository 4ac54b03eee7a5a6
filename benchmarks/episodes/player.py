"""``Player``: plays one episode as a model would, and judges the answers that the model reads."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from benchmarks.episodes.script import Call, Episode
from benchmarks.episodes.worlds.every import WORLDS

Verdict = Literal["identical", "told", "wrong", "unfinished"]
VERDICTS: tuple[Verdict, ...] = ("identical", "told", "wrong", "unfinished")

_FAILURE = re.compile(r"\AError \((\w+)\): (.*)")
_REFUSED = "refused: "
"""The worlds' own refusals begin with it; all other failures are told by toolbus."""

_RESTARTED = "[What was done in this session before is lost."
"""An answer that begins with it came from a new state, and says so."""

_OF_THE_SESSION = re.compile(r"\bsession\b", re.IGNORECASE)


class Player:
    """Hands out the calls of one turn after another until an answer is not the expected one.

    After a failure that says nothing of the session, it audits all services: state that is gone by then is gone silently.

    Attributes:
        verdict: ``identical`` when every answer was the expected one; ``told`` when the first other one was a failure of the
            call; ``wrong`` when it was an answer of another state; ``unfinished`` until the episode is over.
        detail: the first answer that was not the expected one, with the expected one.
        calls: how many were made.
        over: the way is done with the episode.
    """

    def __init__(self, episode: Episode, pauses: Sequence[float] = ()) -> None:
        self.episode = episode
        self.verdict: Verdict = "unfinished"
        self.detail = ""
        self.error = ""
        self.calls = 0
        self.over = False
        self._turn = 0
        self._pauses = list(pauses)
        self._probe: dict[str, int] | None = None

    async def answer(self, said: Mapping[str, str]) -> tuple[Call, ...]:
        """Judge the answers to the turn before, by the calls' ids; wait, as a model does, and return the next calls, if any."""
        if self._turn and self.verdict == "unfinished":
            self._judge_probe(said) if self._probe is not None else self._judge(self.episode.turns[self._turn - 1], said)
        if self.verdict != "unfinished":
            return ()
        if self._probe is not None:
            calls = self._audits()
        elif self._turn < len(self.episode.turns):
            calls = self.episode.turns[self._turn]
            self._turn += 1
        else:
            self.verdict = "identical"
            return ()
        if self._pauses:
            await asyncio.sleep(self._pauses.pop())
        self.calls += len(calls)
        return calls

    def fail(self, reason: str) -> None:
        """Note that the way of making turns failed itself, so that the episode can't be finished."""
        self.detail = f"{reason[:500]}; {self.detail}" if self.detail else reason[:500]
        if self.verdict == "identical":
            self.verdict = "unfinished"

    def _judge(self, turn: Sequence[Call], said: Mapping[str, str]) -> None:
        for call in turn:
            text = said.get(call.id)
            if text is not None and expected(call, text):
                continue
            if text is not None and text.startswith(_RESTARTED):
                self.verdict, self.error = "told", text.partition("\n")[0]
                return
            failure = None if text is None else _FAILURE.match(text)
            self.detail = f"{call.id} {call.tool}({json.dumps(call.arguments)}) answered {text!r}, not {call.refusal or call.value!r}"
            if failure is None or failure[2].startswith(_REFUSED):
                self.verdict = "wrong"
                return
            self.error = f"{failure[1]}: {failure[2]}"
            if _OF_THE_SESSION.search(failure[2]):
                self.verdict = "told"
            else:
                self._probe = call.served
            return

    def _audits(self) -> tuple[Call, ...]:
        return tuple(Call(f"p{index}", name, WORLDS[name].audit_tool(), {}, {}) for index, name in enumerate(self.episode.services))

    def _judge_probe(self, said: Mapping[str, str]) -> None:
        """Look for a service that has forgotten calls and does not say so."""
        self.verdict = "told"
        for call in self._audits():
            text = said.get(call.id, "")
            failure = _FAILURE.match(text)
            served = -1 if failure else json.loads(text)["served"]
            if not failure and served < (self._probe or {}).get(call.service, 0):
                self.verdict = "wrong"
                self.detail += f"; then {call.tool} told of {served} calls, not of {(self._probe or {})[call.service]}"


def expected(call: Call, text: str) -> bool:
    """Return whether an observation is the one that a call must get."""
    if call.refusal:
        return text.startswith("Error (tool_error") and call.refusal in text.partition("\n")[0]
    if isinstance(call.value, str):
        return text == call.value
    return plain(text) == call.value


def plain(text: str) -> Any:
    """Return the JSON value of a text, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
