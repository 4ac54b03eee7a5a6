"""Parameters of learning."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from toolbus.results import ConfigurationError

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of learning; the defaults suit logs of hundreds to a million calls.

    Attributes:
        prior_strength: number of calls that a tool's static score is worth.
        next_strength: number of transitions that the static scores of an action's successors are worth together.
        half_life: days after which an execution counts half.
        clip: greatest weight of an execution; those with a propensity below 1 / ``clip`` get this weight.
        min_evidence: effective number of executions before a score moves.
        credibility: required probability that the static score is too low, or too high, before it moves.
        guard: required probability that the new order is better, before tools of an action change places.
        folds: number of parts of the log that take turns in judging what was learned from the others.
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
        """Return the same parameters after checking their bounds.

        Raises:
            ConfigurationError: a parameter is out of bounds; the message names it.
        """
        try:
            return msgspec.convert(msgspec.structs.asdict(self), Parameters)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"parameters of learning: {error}") from None
