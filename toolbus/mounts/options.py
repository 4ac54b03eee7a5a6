"""``Options``: how what is mounted is served, and its limits."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from toolbus import rules
from toolbus.results import ConfigurationError

_SECONDS = rules.number("a number of seconds above 0", above=0, most=1e9)
_RULES = {
    "timeout": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "output_limit": rules.whole("a number of characters, 0 or more"),
    "start": _SECONDS,
    "patience": _SECONDS,
    "quiet": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "between": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "first_delay": _SECONDS,
    "longest_delay": _SECONDS,
    "most_tools": rules.whole("a whole number above 0", 1),
    "most_bytes": rules.whole("a whole number of at least 1,024", 1_024),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a mount.

    Attributes:
        include: patterns (``get_*``) of the tools that are served; all when empty.
        exclude: patterns of tools that are not served, even if they are included.
        prefix: what the names of its tools begin with.
        groups, category: labels of its tools.
        timeout: seconds that a call may take unless the caller says otherwise; 0 for the caller's default.
        output_limit: characters of an observation; 0 for the default.
        external: the tools are marked as external, so that models are told to distrust what they say.
        resources: resources and prompts are served as tools that read.
        start: seconds that the server may take to start and to list what it has.
        patience: seconds that a call waits for a server that starts anew, and after which a server that answers nothing is ended.
        quiet, between: seconds without a change before tools are listed again, and at least between two lists.
        first_delay, longest_delay: seconds before a server that ended is started again; doubled each time.
        most_tools: tools that are served; those beyond are left out.
        most_bytes: bytes of one message of the server.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefix: str = ""
    groups: tuple[str, ...] = ()
    category: str = ""
    timeout: float = 0.0
    output_limit: int = 0
    external: bool = True
    resources: bool = True
    start: float = 30.0
    patience: float = 10.0
    quiet: float = 0.25
    between: float = 2.0
    first_delay: float = 0.5
    longest_delay: float = 30.0
    most_tools: int = 1_000
    most_bytes: int = 16_777_216

    def __post_init__(self) -> None:
        rules.check({name: getattr(self, name) for name in _RULES}, _RULES, "mount")

    def selects(self, name: str) -> bool:
        """Return whether a tool of the mounted server is served."""
        wanted = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def check_name(name: str) -> str:
    """Return the name of a mount, which is the id of its service.

    Raises:
        ConfigurationError: it can't be one.
    """
    if not 0 < len(name) <= 64 or not name.isascii() or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigurationError(f"{name!r} is no name of a mount: give 1 to 64 letters, digits, '_', '.' or '-', such as github")
    return name
