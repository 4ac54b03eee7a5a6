"""Say what a refused command needs, for a person who changes access lists."""

from __future__ import annotations

from collections.abc import Sequence

from toolbus.broker import scripts
from toolbus.broker.access.rights import commands_of
from toolbus.broker.access.roles import ROLES, Role
from toolbus.broker.access.touched import SCRIPTS, WRITES_DOCUMENTS, Touched
from toolbus.broker.reading import shown

# Scripts that roles may lack: others run them, too.
_LEFT_TO_OTHERS = frozenset({"registry/sweep"})
# Keys that an error names, and words of a command that are looked at.
_MOST_KEYS = 4
_MOST_WORDS = 64
_NEEDS = "it needs the role "
_NO_ROLES = "the user of this process has no rights in the namespace {0!r}: set TOOLBUS_NAMESPACE, or give it a role (`toolbus acl ROLE`)"


def is_forbidden(error: BaseException) -> bool:
    """Return whether the server has refused a command, or one within a script, because its user lacks a right."""
    # Within a script it has the code of any other error; the first text is Valkey's, the second Redis 7.0's.
    return str(error).startswith(("NOPERM", "ERR ACL failure in script", "ERR The user executing the script"))


def wanted(packed: bytes) -> str:
    """Return which role a packed command needs, which script or command it is, and what it touches."""
    words = _words(packed)
    script = _script_in(packed)
    roles = _joined(_roles_for(script, words))
    role = f"{_NEEDS}{roles}; " if roles else ""
    if script:
        table = " and the table of what it writes" if script in WRITES_DOCUMENTS else ""
        touched = _told(SCRIPTS[script]) or f"reading and writing {', '.join(map(shown, _keys(words)[:_MOST_KEYS])) or 'its keys'}"
        return f"{role}the script {script} needs {touched}{table}, and the commands {' '.join(sorted(commands_of(script)))}"
    name = words[0].decode(errors="replace").lower() if words else ""
    key = f" {words[1].decode(errors='replace')[:100]}" if len(words) > 1 else ""
    return f"{role}it was {name}{key}"


def with_roles(text: str, roles: Sequence[str], namespace: str) -> str:
    """Return the text of a refusal with the roles that its user has: for somebody who sees it at a terminal."""
    if not roles:
        return f"{_NO_ROLES.format(namespace)}; {text}"
    before, needs, after = text.partition(_NEEDS)
    if not needs:
        return f"{text} (this user is: {', '.join(roles)})"
    needed, end, rest = after.partition(";")
    old = [role for role in roles if role in needed.replace(",", "").split()]
    advice = f"; its rights are older than this release: set them again with `toolbus acl {' '.join(roles)}`" if old else ""
    return f"{before}{needs}{needed} (this user is: {', '.join(roles)}{advice}){end}{rest}"


def is_left_to_others(packed: bytes) -> bool:
    """Return whether a packed command is a script that some roles may not run, or asks for a role."""
    return _script_in(packed) in _LEFT_TO_OTHERS or (packed.startswith(b"*2\r\n$6\r\nEXISTS\r\n") and b"}:role:" in packed)


def _words(packed: bytes) -> list[bytes]:
    return packed.split(b"\r\n", 2 * _MOST_WORDS)[2 : 2 * _MOST_WORDS : 2]


def _keys(words: Sequence[bytes]) -> list[bytes]:
    """Return the keys that a script is given."""
    count = int(words[2]) if len(words) > 2 and words[2].isdigit() else 0
    return list(words[3 : 3 + count])


def _roles_for(script: str, words: Sequence[bytes]) -> list[str]:
    """Return the roles that may run a script or a command with these keys, the one with most rights last."""
    keys = _keys(words) if script else words[1:]
    families = [rest for word in keys if word.startswith(b"tb:{") for rest in [word.partition(b"}:")[2].decode(errors="replace")] if rest]
    if script:
        found = [name for name, role in ROLES.items() if script in role.scripts and _may_write(role, script, families)]
    else:
        command = words[0].decode(errors="replace").lower() if words else ""
        found = [name for name, role in ROLES.items() if _may_send(role, command, families)]
    return sorted(found, key=lambda name: name == "operator")


def _may_write(role: Role, script: str, families: Sequence[str]) -> bool:
    """Return whether a script that writes documents is given none that is another role's."""
    others = {family for each in ROLES.values() for family in each.tables.split()} - {"reg:items", *role.tables.split()}
    return script not in WRITES_DOCUMENTS or others.isdisjoint(families)


def _may_send(role: Role, command: str, families: Sequence[str]) -> bool:
    touched = role.commands.get(command, Touched())
    known = f"{touched.given} {touched.reads} {touched.writes} {touched.tells} {role.alone.get(command, '')}".split()
    return bool(families) and all(any(each == family or each.startswith(f"{family}:") for family in known) for each in families)


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def _script_in(packed: bytes) -> str:
    words = packed.split(b"\r\n", 5)[2:5:2]
    if len(words) < 2 or words[0] not in {b"EVAL", b"EVALSHA"}:
        return ""
    head = words[1]
    return next((each.name for each in scripts.ALL if head == each.sha.encode() or packed.find(each.source.encode()) > 0), "")


def _told(touched: Touched) -> str:
    parts = (
        ("", touched.given, "reading and writing"),
        ("", touched.reads, "reading"),
        ("", touched.writes, "writing"),
        ("the channels ", touched.tells, "publishing"),
    )
    return ", ".join(f"{what} {kind}{families}" for kind, families, what in parts if families)
