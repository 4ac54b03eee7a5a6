"""Services whose tools are methods that also get the config of the called tool.

An operator adds a tool to such a service with a descriptor that names the ``operation``
and limits it (``{"operation": "data_analysis", "max_rows": 20, …}``). Arguments are checked
by the method's annotations, for every descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from toolbus import ConfigurationError, ToolError, ToolService, invocation
from toolbus.bus.schema.derivation import derive
from toolbus.bus.values.descriptors import Effect

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=msgspec.Struct)

_MARK = "__toolbus_operation__"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The config values that a tool's descriptor may set; services add fields, and each becomes a config param."""

    operation: str = ""


class Operation(msgspec.Struct, frozen=True):
    """A method of a service as an operation: the descriptor of its own tool, and the binder of its arguments."""

    function: Callable[..., Any]
    bind: Callable[[Mapping[str, Any]], dict[str, Any]]
    descriptor: dict[str, Any]


def operation(*, effect: Effect = "read", timeout: float = 60.0, category: str = "data", group: str = "") -> Callable[[F], F]:
    """Make a method ``(self, config, …)`` an operation, and a tool with the method's name."""

    def mark(function: F) -> F:
        setattr(function, _MARK, {"effect": effect, "timeout": timeout, "category": category, "groups": [group] if group else []})
        return function

    return mark


class OperationService(ToolService):
    """Collects the operations of a subclass, which names its config: ``class Files(OperationService, config=FilesConfig)``."""

    _config: ClassVar[type[Config]]
    _operations: ClassVar[Mapping[str, Operation]]

    def __init_subclass__(cls, *, config: type[Config], **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._config = config
        cls._operations = {
            name: _made(name, function, config) for name, function in vars(cls).items() if getattr(function, _MARK, None) is not None
        }
        cls.config_params = config.__struct_fields__
        cls.tools = [made.descriptor for made in cls._operations.values()]

    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Run the operation that the tool's config names.

        Raises:
            ToolError: there is no such operation, or the config or the arguments are wrong.
        """
        name = config.get("operation") or invocation().tool
        found = self._operations.get(name) if isinstance(name, str) else None
        if found is None:
            known = ", ".join(sorted(self._operations))
            raise ToolError(f"the tool's config names no operation of {self.id!r}; an operator sets one of: {known}", code="bad_config")
        try:
            given = msgspec.convert(config, self._config, strict=False)
        except msgspec.ValidationError as error:
            raise ToolError(f"the tool's config is wrong, which an operator must fix: {error}", code="bad_config") from None
        return found.function(self, given, **found.bind(arguments))


def load_limits(limits: type[L], prefix: str, environ: Mapping[str, str] | None = None) -> L:
    """Return a service's own limits from ``<prefix><FIELD>`` variables, or their defaults.

    Raises:
        ConfigurationError: a variable is wrong; the message names it.
    """
    variables = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(limits):
        variable = prefix + field.name.upper()
        if variables.get(variable, "") == "":
            continue
        try:
            values[field.name] = msgspec.convert(variables[variable], field.type, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{variable} is wrong: {error} (given: {variables[variable]!r})") from None
    return limits(**values)


def _made(name: str, function: Callable[..., Any], config: type[Config]) -> Operation:
    derived = derive(function, injected={config}, skip_self=True)
    descriptor = {
        "name": name,
        "description": derived.description,
        "parameters": derived.parameters,
        "operation": name,
        **getattr(function, _MARK),
    }
    return Operation(function, derived.bind, descriptor)
