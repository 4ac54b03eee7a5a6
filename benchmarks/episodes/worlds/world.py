"""``World``: the state of one session of one service, with methods that are tools."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Callable
from typing import Any, ClassVar

from toolbus import ToolError

Move = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


def refuse(message: str) -> ToolError:
    """Return the exception of a call that the state does not allow."""
    return ToolError(f"refused: {message}", code="refused")


class World:
    """The state of one session; all attributes are JSON values, and the public methods are tools.

    Attributes:
        name: id of the service; the tools are called ``<name>_<method>``.
        served: calls so far, without audits.
    """

    name: ClassVar[str]

    def __init__(self, session: str) -> None:
        """Make the state with which a session starts, which depends on its id alone."""
        self.served = 0
        self._prepare(random.Random(f"{self.name}/{session}"))

    def _prepare(self, chance: random.Random) -> None:
        raise NotImplementedError

    def _propose(self, chance: random.Random) -> Move:
        """Return a call that makes sense in this state, by the method's name."""
        raise NotImplementedError

    def audit(self) -> dict[str, Any]:
        """Tell how many calls this session has made to the service, and a digest of its state."""
        text = json.dumps(vars(self), sort_keys=True)
        return {"served": self.served, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}

    @classmethod
    def methods(cls) -> dict[str, Callable[..., Any]]:
        """Return the methods that are tools, by the tool's name, in the order of their definition."""
        found = {name: each for kind in reversed(cls.__mro__[:-1]) for name, each in vars(kind).items()}
        plain = {name: each for name, each in found.items() if inspect.isfunction(each) and not name.startswith("_")}
        return {f"{cls.name}_{name}": each for name, each in plain.items()}

    @classmethod
    def audit_tool(cls) -> str:
        """Return the name of the tool that tells of the state."""
        return f"{cls.name}_audit"

    def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Run a tool by its name.

        Raises:
            ToolError: the state does not allow it.
        """
        method = self.methods()[tool]
        if tool != self.audit_tool():
            self.served += 1
        return method(self, **arguments)

    def _next(self, chance: random.Random) -> Move:
        """Return a call that makes sense in this state, by the tool's name."""
        method, arguments = self._propose(chance)
        return f"{self.name}_{method}", arguments
