"""The rights of a user, as ACL rules of the server."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from toolbus.broker import scripts
from toolbus.broker.access.roles import ROLES
from toolbus.broker.access.touched import SCRIPTS
from toolbus.broker.keys import Keys

_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?")
# Commands that the scripts choose by a subcommand, which rules can name.
_PARTED = frozenset({"XGROUP", "XINFO"})
_GLOB = re.compile(r"([\\*?\[\]])")
# Commands that a script passes on to a function of its own.
_CHOSEN = {script: frozenset({"hkeys", "xlen", "sismember", "zscore"}) for script in ("registry/overview", "registry/overviews")}
# Every connection begins with these. Of CLIENT only what is sent: its tracking tells the names of all keys of the server.
_CONNECTION = ("+@connection", "-@admin", "-@dangerous", "-client", "+client|id", "+client|setname", "+client|getname")
# Scripts whose source the user brings; who may, can stop the server with one, and fill its memory.
_SOURCES = frozenset({"eval", "script|load"})
# The checks of the server.
_CHECKS = frozenset(
    "time info role wait asking evalsha cluster|slots acl|whoami exists subscribe unsubscribe".split()  # noqa: SIM905
)


class Rights(msgspec.Struct, frozen=True):
    """The rights of a user, as ACL rules name them.

    Attributes:
        commands: allowed commands beside those of a connection, a part of a command after ``|``.
        given, reads, writes: patterns of keys that may be read and written, read, and written.
        channels: patterns of channels.
        alone: commands, each with patterns of the only keys that it is allowed for.
    """

    commands: tuple[str, ...]
    given: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    channels: tuple[str, ...]
    alone: tuple[tuple[str, tuple[str, ...]], ...]

    def rules(self) -> str:
        """Return them as the rules of ``ACL SETUSER`` or an ACL file; both keep the user's passwords."""
        words = ["resetkeys", "resetchannels", "clearselectors", "-@all", *_CONNECTION]
        words += [f"~{pattern}" for pattern in self.given]
        words += [f"%R~{pattern}" for pattern in self.reads]
        words += [f"%W~{pattern}" for pattern in self.writes]
        words += [f"&{pattern}" for pattern in self.channels]
        words += [f"+{command}" for command in self.commands]
        words += [f"(-@all +{command} {' '.join(f'~{pattern}' for pattern in patterns)})" for command, patterns in self.alone]
        return " ".join(words)


def rights(roles: Iterable[str], namespace: str) -> Rights:
    """Return the rights that a user needs who has these roles in a namespace.

    Raises:
        KeyError: there is no such role.
    """
    names = list(roles)
    found = [ROLES[name] for name in names]
    touched = [SCRIPTS[script] for role in found for script in role.scripts]
    touched += [each for role in found for each in role.commands.values()]
    given = {family for each in touched for family in each.given.split()} | {family for role in found for family in role.tables.split()}
    reads = {family for each in touched for family in each.reads.split()} - given
    writes = {family for each in touched for family in each.writes.split()} - given
    given |= reads & writes
    keys = Keys(namespace)
    channels = {family for each in touched for family in each.tells.split()} | {family for role in found for family in role.hears.split()}
    commands = {command for role in found for command in role.commands} | (_CHECKS if any(role.checks for role in found) else frozenset())
    if any(role.sources for role in found):
        commands |= _SOURCES
    commands |= {command for role in found for script in role.scripts for command in commands_of(script) - role.never}
    return Rights(
        commands=tuple(sorted(commands)),
        given=_patterns(keys, given),
        reads=tuple(sorted((*_patterns(keys, reads - given), *(_escaped(mark(keys, name)) for name in names)))),
        writes=_patterns(keys, writes - given),
        channels=_patterns(keys, channels),
        alone=tuple((command, _patterns(keys, families.split())) for role in found for command, families in role.alone.items()),
    )


def mark(keys: Keys, role: str) -> str:
    """Return a key that nobody ever writes, and that only users with this role may look for: so a process finds out its role."""
    return f"{keys.prefix}role:{role}"


def commands_of(script: str) -> frozenset[str]:
    """Return the commands in a script's source, in lower case, as ACL rules name them."""
    [source] = [each.source for each in scripts.ALL if each.name == script]
    return frozenset(
        f"{command}|{part}".lower() if command in _PARTED else command.lower() for command, part in _CALLED.findall(source)
    ) | _CHOSEN.get(script, frozenset())


def _patterns(keys: Keys, families: Iterable[str]) -> tuple[str, ...]:
    whole = {*keys.shared_by_all(), keys.wake_all, keys.confirmed, keys.creations_told, keys.messenger}
    named = [f"{keys.prefix}{family}" for family in families]
    return tuple(sorted(_escaped(key) if key in whole else f"{_escaped(key)}:*" for key in named))


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)
