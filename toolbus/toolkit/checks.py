"""Check a preset beyond its types: duplicate ids, dangling references, invalid chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from toolbus.results import ToolkitError
from toolbus.safe_text import type_name
from toolbus.toolkit.chain import add_chain
from toolbus.toolkit.entries import ActionEntry, GroupEntry, Link, Preset, ToolEntry
from toolbus.toolkit.items import Action, Item, Tool, ToolGroup
from toolbus.toolkit.service import ToolkitService

_MOST_ENTRIES = 500_000

Problem = tuple[str, str]
"""A path (``$.actions[3].next[0]``), and what is wrong there."""

# Items that stand in for the entries while the shape of a chain is checked.
_STAND_INS: dict[str, Callable[[str], Item]] = {
    "actions": lambda entry: Action(entry, entry),
    "tools": lambda entry: Tool(entry, entry),
    "groups": lambda entry: ToolGroup(entry, entry),
}


def problems(preset: Preset) -> Iterator[Problem]:
    """Yield every problem, in the order of the preset."""
    kinds: dict[str, str] = {}
    yield from _taken(preset, kinds)
    yield from _tools(preset.tools)
    for index, group in enumerate(preset.groups):
        for at, member in enumerate(group.tools):
            yield from _dangling(f"$.groups[{index}].tools[{at}]", member, kinds, ("tools",))
        if not (group.tools or group.service or group.group):
            yield f"$.groups[{index}]", f"the group {group.id!r} has no tools: give it tools, a service or a group"
    for index, action in enumerate(preset.actions):
        for key, links, wanted in (("next", action.next, ("actions",)), ("call", action.call, ("tools", "groups"))):
            for at, link in enumerate(links):
                yield from _dangling(f"$.actions[{index}].{key}[{at}]", target_of(link), kinds, wanted)
    for index, chain in enumerate(preset.chains):
        path = f"$.chains[{index}]"
        wrong = list(_members(path, chain, kinds))
        yield from wrong or _shape(path, chain, kinds)
    yield from _operators(preset, kinds)


def target_of(link: str | Link) -> str:
    """Return the id that a link leads to."""
    return link if isinstance(link, str) else link.to


def _taken(preset: Preset, kinds: dict[str, str]) -> Iterator[Problem]:
    every: dict[str, Sequence[ToolEntry | GroupEntry | ActionEntry]]
    every = {"tools": preset.tools, "groups": preset.groups, "actions": preset.actions}
    for kind, entries in every.items():
        for index, entry in enumerate(entries):
            if entry.id in kinds:
                yield f"$.{kind}[{index}].id", f"the id {entry.id!r} is taken by another of the {kinds[entry.id]}"
            kinds[entry.id] = kind
    if len(kinds) > _MOST_ENTRIES:
        yield "$", f"a preset may have {_MOST_ENTRIES:,} entries, this one has {len(kinds):,}"


def _tools(entries: Iterable[ToolEntry]) -> Iterator[Problem]:
    for index, tool in enumerate(entries):
        if tool.function and tool.bus:
            yield f"$.tools[{index}].function", f"the tool {tool.id!r} is a function or a tool of the bus, not both"
        if tool.function and not all(tool.function.partition(":")[::2]):
            yield f"$.tools[{index}].function", f"{tool.function!r} is not module:function"


def _operators(preset: Preset, kinds: dict[str, str]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, operator in enumerate(preset.operators):
        if operator.id in seen:
            yield f"$.operators[{index}].id", f"there are two operators {operator.id!r}"
        seen.add(operator.id)
        for at, start in enumerate(operator.actions):
            yield from _dangling(f"$.operators[{index}].actions[{at}]", start, kinds, ("actions",))


def _dangling(path: str, entry: str, kinds: dict[str, str], wanted: tuple[str, ...]) -> Iterator[Problem]:
    kind = kinds.get(entry)
    if kind is None:
        yield path, f"there is no entry {entry!r}; add it to {' or '.join(wanted)}"
    elif kind not in wanted:
        yield path, f"{entry!r} is one of the {kind}, where one of the {' or '.join(wanted)} belongs"


def _members(path: str, chain: Iterable[Any], kinds: dict[str, str]) -> Iterator[Problem]:
    for at, part in enumerate(chain):
        if isinstance(part, (list, tuple)):
            yield from _members(f"{path}[{at}]", part, kinds)
        elif isinstance(part, str):
            yield from _dangling(f"{path}[{at}]", part, kinds, ("actions", "tools", "groups"))
        else:
            yield f"{path}[{at}]", f"expected an id or a list of ids, got {type_name(part)}"


def _shape(path: str, chain: Iterable[Any], kinds: dict[str, str]) -> Iterator[Problem]:
    def stand_in(part: Any) -> Any:
        return tuple(map(stand_in, part)) if isinstance(part, (list, tuple)) else _STAND_INS[kinds[part]](part)

    try:
        add_chain(ToolkitService(), *map(stand_in, chain))
    except ToolkitError as error:
        yield path, str(error)
