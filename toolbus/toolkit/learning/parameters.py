"""What the estimates depend on, beside the log and the static scores."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from toolbus.results import ConfigurationError

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit logs of hundreds to a million calls.

    Attributes:
        prior_strength: how many calls the static score of a tool is worth.
        next_strength: how many transitions the static scores of an action's successors are worth together.
        half_life: days after which an execution counts half.
        clip: greatest weight of an execution; those with a propensity below 1 / ``clip`` weigh this much.
        min_evidence: effective executions before a score moves.
        credibility: how probable it must be that the static score is too low, or too high, before it moves.
        guard: how probable it must be that the new order of tools is better, before tools of an action change places.
        folds: parts of the log that take turns in judging what was learned from the others.
    """

    prior_strength: Positive = 4.0
    next_strength: Positive = 8.0
    half_life: Positive = 30.0
    clip: Annotated[float, Meta(ge=1, le=1e6)] = 10.0
    min_evidence: Positive = 8.0
    credibility: Annotated[float, Meta(ge=0.5, lt=1)] = 0.9
    guard: Annotated[float, Meta(ge=0.5, lt=1)] = 0.99
    folds: Annotated[int, Meta(ge=2, le=50)] = 5

    def checked(self) -> Parameters:
        """The same, when every one is within its bounds.

        Raises:
            ConfigurationError: one is not; the message names it.
        """
        try:
            return msgspec.convert(msgspec.structs.asdict(self), Parameters)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"parameters of learning: {error}") from None
