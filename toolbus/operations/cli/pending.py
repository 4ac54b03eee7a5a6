"""Approve and reject recorded tools that wait for approval; part of ``approve`` and ``pins``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import ask_first, fail, print_json, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.review import Review

_MOST_VALUE = 300
_MOST_FILES = 100


def review_of(ctx: click.Context, name: str) -> Review | None:
    """Return the tool of this name that waits for approval, with the files of its code that are here; None when none waits."""
    from toolbus.platform.review import reviewed, with_files
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> tuple[RecordedTool | None, RecordedTool | None]:
        found = await Records(admin).all()
        # Records that can't be read are no reason to treat it as a tool of a worker.
        wrong = next((each.reason for each in found.refused if each.key == f"pending/{name}"), "")
        if wrong:
            fail(f"it waits for approval and can't be used: {visible(wrong)}; `toolbus pins reject` removes it")
        return found.pending.get(name), found.tools.get(name)

    pending, served = with_admin(ctx, main)
    return None if pending is None else with_files(reviewed(pending, served), pending)


async def unpinned(admin: Admin, name: str) -> str:
    """Return a warning when the code of a recorded tool that is served is not part of what was approved; else an empty text."""
    from toolbus.platform.review import unpinned_code
    from toolbus.platform.store import Records

    tool = (await Records(admin).all()).tools.get(name)
    return "" if tool is None else unpinned_code(tool)


def approve(ctx: click.Context, review: Review, *, digest: str, yes: bool, by: str, reason: str, output: str) -> None:
    """Approve a tool by its digest, or after a person has seen it and says so."""
    if not digest:
        if output == "json" and not yes:
            print_json(review)
            fail(f"not approved; `toolbus approve {visible(review.tool_id)} --digest {review.digest}` approves this form")
        if output != "json":
            show(review)
        if not yes:
            ask_first(f"Approve {visible(review.tool_id)} ({review.digest[:16]})?")

    async def main(admin: Admin) -> RecordedTool:
        from toolbus.operations.cli.platform import sync_after
        from toolbus.platform.store import Records

        approved = await Records(admin).approve(review.tool_id, digest=digest or review.digest, by=by, reason=reason)
        await sync_after(admin)
        return approved

    tool = with_admin(ctx, main)
    if output == "json":
        print_json({"tool_id": tool.tool_id, "state": "approved", "revision": tool.revision, "digest": review.digest})
    else:
        say(f"approved {visible(tool.tool_id)}, revision {tool.revision} ({review.digest[:16]}); hosts serve it from now on")
        say("its descriptor is pinned: a record that changes it without approval is withheld until it is approved")
        if digest and review.unpinned:
            # Nothing was shown before.
            say(visible(review.unpinned), fg="yellow", err=True)


def reject(ctx: click.Context, name: str) -> bool:
    """Remove what waits for approval under a name; False when nothing does."""

    async def main(admin: Admin) -> bool:
        return await Records(admin).remove(f"pending/{name}")

    from toolbus.platform.store import Records

    if not with_admin(ctx, main):
        return False
    say(f"rejected what waited for approval as {visible(name)}; what is served stays")
    return True


def rows(ctx: click.Context) -> list[dict[str, Any]]:
    """Return the tools that wait for approval, as entries of ``pins list``."""
    from toolbus.platform.review import reviewed
    from toolbus.platform.store import Records

    async def main(admin: Admin) -> list[Review]:
        found = await Records(admin).all()
        return [reviewed(tool, found.tools.get(name)) for name, tool in found.pending.items()]

    return [
        {
            "name": each.tool_id,
            "state": "pending",
            "service": each.tool_id,
            "digest": each.digest,
            "changes": ["new tool"] if each.is_new else [change.field for change in each.changes],
            "by": each.made_by,
        }
        for each in with_admin(ctx, main)
    ]


def show(review: Review) -> None:
    """Print a review for a person."""
    kind = "a new tool" if review.is_new else f"revision {review.revision} of a tool that is served"
    by = f", made by {visible(review.made_by)}" if review.made_by else ""
    say(f"{visible(review.tool_id)} waits for approval: {kind}{by}")
    say(f"digest {review.digest}")
    for change in review.changes:
        before = "" if change.before is None else f"{_value(change.before)} → "
        after = "(gone)" if change.after is None else _value(change.after)
        say(f"  {visible(change.field)}: {before}{after}")
    if review.rights:
        say(visible(review.rights))
    if review.files:
        say(f"files of its code ({len(review.files)}):")
        for file in review.files[:_MOST_FILES]:
            say(f"  {visible(file.path)} ({file.bytes:,} bytes)")
        if len(review.files) > _MOST_FILES:
            say(f"  and {len(review.files) - _MOST_FILES} more")
    if review.unpinned:
        say(visible(review.unpinned), fg="yellow", err=True)
    if review.note:
        say(visible(review.note), fg="red", err=True)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return visible(one_line(text, _MOST_VALUE))
