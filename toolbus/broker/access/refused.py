"""Say what a refused command needs, for a person who changes access lists."""

from __future__ import annotations

from toolbus.broker import scripts
from toolbus.broker.access.rights import commands_of
from toolbus.broker.access.touched import SCRIPTS, WRITES_DOCUMENTS, Touched

# Scripts that roles may lack: others run them, too.
_LEFT_TO_OTHERS = frozenset({"registry/sweep"})


def is_forbidden(error: BaseException) -> bool:
    """Return whether the server has refused a command, or one within a script, because its user lacks a right."""
    # Within a script it has the code of any other error; the first text is Valkey's, the second Redis 7.0's.
    return str(error).startswith(("NOPERM", "ERR ACL failure in script", "ERR The user executing the script"))


def wanted(packed: bytes) -> str:
    """Return which script or command a packed command is, and what it touches, for a person who changes access lists."""
    script = _script_in(packed)
    if script:
        table = " and the table of what it writes" if script in WRITES_DOCUMENTS else ""
        return f"the script {script} needs {_told(SCRIPTS[script])}{table}, and the commands {' '.join(sorted(commands_of(script)))}"
    words = packed.split(b"\r\n")[2:6:2]
    name = words[0].decode(errors="replace").lower() if words else ""
    key = f" {words[1].decode(errors='replace')[:100]}" if len(words) > 1 else ""
    return f"it was {name}{key}"


def is_left_to_others(packed: bytes) -> bool:
    """Return whether a packed command is a script that some roles may not run, or asks for a role."""
    return _script_in(packed) in _LEFT_TO_OTHERS or (packed.startswith(b"*2\r\n$6\r\nEXISTS\r\n") and b"}:role:" in packed)


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
    return ", ".join(f"{what} {kind}{families}" for kind, families, what in parts if families) or "the keys of its role"
