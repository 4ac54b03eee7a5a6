"""Options of the coding agent, and the prices of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.bus.values.results import ConfigurationError
from toolbus.platform.coding.options import CodingOptions, Prices, deployment_of
from toolbus.platform.coding.service import SETTINGS


def test_the_environment_sets_every_option() -> None:
    """Each option has a variable, which the service tells of."""
    assert {f"TOOLBUS_CODING_{name.upper()}" for name in CodingOptions.__struct_fields__} <= SETTINGS.keys()
    found = deployment_of(
        {
            "TOOLBUS_TOOLS_DIR": "tools",
            "TOOLBUS_CODING_WORKSPACES": "/w",
            "TOOLBUS_CODING_AT_ONCE": "3",
            "TOOLBUS_CODING_AUTO_APPROVE": "true",
            "TOOLBUS_CODING_LABELS": "a, b,",
            "TOOLBUS_CODING_NETWORK": "packages",
            "TOOLBUS_CODING_DOCKER": "false",
            "TOOLBUS_MODEL_PRICES": "m=1/2",
        }
    )
    assert (found.options.at_once, found.options.auto_approve, found.options.hosts) == (3, True, ("a", "b"))
    assert (found.tools, found.workspaces) == (Path.cwd() / "tools", Path("/w"))
    assert (found.options.workspace.network, found.options.workspace.docker) == ("packages", False)
    assert deployment_of({}).options == CodingOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOOLBUS_CODING_AT_ONCE", "0"),
        ("TOOLBUS_CODING_SECONDS", "soon"),
        ("TOOLBUS_CODING_NETWORK", "some"),
        ("TOOLBUS_CODING_FAILING_SHARE", "2"),
        ("TOOLBUS_CODING_AUTOAPPROVE", "true"),
        ("TOOLBUS_MODEL_PRICES", "m"),
        ("TOOLBUS_MODEL_PRICES", "m=-1/2"),
        ("TOOLBUS_MODEL_PRICES", "m=nan/2"),
        ("TOOLBUS_MODEL_PRICES", "=1/2"),
    ],
)
def test_a_wrong_option_is_named(name: str, value: str) -> None:
    """The worker does not start with it."""
    with pytest.raises(ConfigurationError, match="TOOLBUS_"):
        deployment_of({name: value})


def test_prices_are_those_of_the_model() -> None:
    """For a million tokens; a star stands for all other models, and a model without a price costs nothing."""
    prices = Prices.read("gpt-5=1.25/10, gpt-5-mini=0.25, *=3/6")
    assert prices.price("gpt-5", 1_000_000, 100_000) == 2_250_000
    assert prices.price("gpt-5-mini", 1_000, 1_000) == 500
    assert prices.price("other", 1, 1) == 9
    assert Prices.read("").price("gpt-5", 1_000, 1_000) == 0
