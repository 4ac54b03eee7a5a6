"""Options of the coding agent, from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from toolbus.agent.endpoint import BASE_URL, KEY, MODEL, OPENAI, missing
from toolbus.bus.values.results import ConfigurationError
from toolbus.platform.coding.files import Network, WorkspaceOptions

PREFIX = "TOOLBUS_CODING_"

TOOLS_DIR = "TOOLBUS_TOOLS_DIR"
PRICES = "TOOLBUS_MODEL_PRICES"

_Count = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class CodingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a coding agent; each is read from ``TOOLBUS_CODING_<NAME>``.

    Attributes:
        at_once: tasks that one worker runs at once.
        requests: most requests to the model for one task.
        seconds: most that a task may run without a pause.
        tokens: most tokens of one task.
        price: most that one task may cost, by the models' prices; 0 for no limit.
        auto_approve: tools are served as soon as they are registered, without a person's approval.
        labels: the hosts that may run the tools; empty for every host.
        workspaces: folder of the tasks' workspaces.
        network: which commands of a task reach the network, see ``WorkspaceOptions``.
        docker: whether tasks may have containers.
        confined: whether commands are confined, see there.
        repair: whether tools that fail get repair tasks.
        repairs_a_day: most repair tasks of one tool in a day.
        failing_share: share of a tool's calls that may fail until it is repaired.
        failing_calls: least calls of which that is judged.
    """

    at_once: _Count = 2
    requests: _Count = 80
    seconds: _Seconds = 3_600.0
    tokens: _Count = 2_000_000
    price: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    auto_approve: bool = False
    labels: str = ""
    workspaces: str = ""
    network: Network = "none"
    docker: bool = True
    confined: bool = True
    repair: bool = False
    repairs_a_day: _Count = 3
    failing_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    failing_calls: _Count = 10

    @property
    def hosts(self) -> tuple[str, ...]:
        """The labels of the hosts that may run the tools."""
        return tuple(label.strip() for label in self.labels.split(",") if label.strip())

    @property
    def workspace(self) -> WorkspaceOptions:
        """The options of a task's workspace."""
        return WorkspaceOptions(network=self.network, confined=self.confined, docker=self.docker)


class Prices(msgspec.Struct, frozen=True):
    """Prices of models for a million tokens, of the request and of the answer, in any currency."""

    of: dict[str, tuple[float, float]] = {}

    @classmethod
    def read(cls, text: str) -> Prices:
        """Return the prices that a text like ``gpt-5=1.25/10, gpt-5-mini=0.25/2`` names; ``*`` stands for all other models.

        Raises:
            ConfigurationError: it names none.
        """
        found: dict[str, tuple[float, float]] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            model, _, said = part.rpartition("=")
            asked, _, answered = said.partition("/")
            try:
                prices = float(asked), float(answered or asked)
            except ValueError:
                prices = (-1.0, -1.0)
            if not model.strip() or not all(0 <= price < 1e6 for price in prices):
                raise ConfigurationError(f"TOOLBUS_MODEL_PRICES: {part!r} is no model=price/price, like gpt-5=1.25/10")
            found[model.strip()] = prices
        return cls(found)

    def price(self, model: str, prompt: int, completion: int) -> int:
        """Return the price of so many tokens, in millionths; 0 for a model without a price."""
        asked, answered = self.of.get(model) or self.of.get("*") or (0.0, 0.0)
        return round(prompt * asked + completion * answered)


class Model(msgspec.Struct, frozen=True):
    """The endpoint and the model of a coding agent."""

    base_url: str
    api_key: str
    name: str

    @classmethod
    def of_environment(cls) -> Model:
        """Return the one that the environment names.

        Raises:
            ConfigurationError: a variable is missing.
        """
        if wrong := missing(os.environ):
            raise ConfigurationError(f"the coding agent needs a model: {wrong.replace('pass --model or ', '')}")
        return cls(os.environ.get(BASE_URL) or OPENAI, os.environ[KEY].strip(), os.environ[MODEL].strip())


class Deployment(msgspec.Struct, frozen=True):
    """Everything that the environment says of a coding agent.

    Attributes:
        options: see there.
        tools: folder of the tools that agents wrote, where hosts find them.
        workspaces: folder of the tasks' workspaces.
        prices: of the models.
    """

    options: CodingOptions
    tools: Path
    workspaces: Path
    prices: Prices


def deployment_of(environ: Mapping[str, str]) -> Deployment:
    """Return what the environment says.

    Raises:
        ConfigurationError: a variable is wrong; the message names it.
    """
    names = {field: f"{PREFIX}{field.upper()}" for field in CodingOptions.__struct_fields__}
    given = {field: environ[name] for field, name in names.items() if environ.get(name)}
    known = set(names.values())
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise ConfigurationError(f"{unknown[0]} is no setting of the coding agent; there are: {', '.join(sorted(known))}")
    try:
        options = msgspec.convert(given, CodingOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"a setting {PREFIX}… is wrong: {error}") from None
    data = Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "toolbus"
    tools = Path(environ.get(TOOLS_DIR) or data / "tools")
    workspaces = Path(options.workspaces or data / "tasks")
    return Deployment(options, _full(tools), _full(workspaces), Prices.read(environ.get(PRICES, "")))


def _full(path: Path) -> Path:
    # A link in it is the deployment's own.
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100
