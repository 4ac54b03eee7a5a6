"""``tools``, the group ``see``, and ``doctor``: inspect without changing anything."""

from __future__ import annotations

import asyncio
import difflib
import gc
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from toolbus.bus.broker.protocols import MOST_ENDED, RefusedTool
from toolbus.bus.broker.statistics.answers import BOUNDS, RunningCall
from toolbus.bus.client.tools.catalogue import Catalogue, catalogue_of, unusable
from toolbus.bus.client.tools.definitions import Format
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.descriptors import tool_document
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.bus.values.urls import redact
from toolbus.operations.cli.command import JSON, Categories, Groups, Names, Output, Seconds, command, date_of, option, seconds_of
from toolbus.operations.cli.common import must_be_known, namespace_of, settings_of, settings_with_server, with_admin
from toolbus.operations.cli.failing import fail, fail_if, wrong_if
from toolbus.operations.cli.output import Columns, emit, names_of, print_json, print_json_line, print_line, print_table, show, titled, warn
from toolbus.operations.unusable import refused as refused_of
from toolbus.operations.unusable import title

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin, ServiceOverview
    from toolbus.bus.broker.statistics.asking import Statistics
    from toolbus.bus.broker.statistics.recent import RecentCall
    from toolbus.bus.client.tools.tool import Tool
    from toolbus.bus.watch.views import Snapshot

    C = TypeVar("C", RecentCall, RunningCall)

_START = "start a worker: toolbus worker FILE.py"


@command("tools")
def tools_command(
    groups: Groups,
    categories: Categories,
    everything: Annotated[bool, option("Also tools that no live worker serves.", "--all")],
    wanted: Annotated[Format | None, option("Print their definitions for a model instead, as JSON.", "--format")],
    strict: Annotated[bool, option("With --format: definitions that a provider can enforce, where possible.", needs=("wanted",))],
    output: Output,
) -> None:
    """List the tools that can be called now.

    \b
    Examples:
      toolbus tools --category text
      toolbus tools --format openai --strict
    """
    catalogue, refusal = with_admin(_catalogue)
    _warn_of(refusal)
    view = ToolView(catalogue).filter(groups=groups or None, categories=categories or None)
    if wanted is not None:
        print_json(view.definitions(wanted, strict=strict))
        return
    found = [tool for tool in view.values() if tool.available or everything]
    refused = refused_of(catalogue)
    others = [{"name": tool.name, "service": tool.service, "available": False, "refused": tool.reason} for tool in refused]
    if not emit(output, [*map(_tool, found), *(others if everything else ())]):
        return
    rows = [(t.name, t.service, "yes" if t.available else "no", one_line(t.description.partition("\n")[0], 70)) for t in found]
    if everything:
        rows += [(tool.name, tool.service, "refused", one_line(tool.reason, 200)) for tool in refused]
    nothing = f"no tools of these groups and categories{namespace_of()}" if groups or categories else f"no tools{namespace_of()}; {_START}"
    print_table(("TOOL", "SERVICE", "LIVE", "DESCRIPTION"), rows, empty=nothing)
    if refused and not everything:
        print_line(
            f"{len(refused)} cannot be used: {one_line(', '.join(map(title, refused)), 200)}; `toolbus tools --all` says why", err=True
        )


@command("services")
async def services_command(admin: Admin, output: Output) -> None:
    """List the services, their workers and their backlog; a day long also those without workers.

    Without a worker a service is `asleep` when it scales to zero, `withdrawn` when its last worker left by itself, and `down` otherwise.

    \b
    Example:
      toolbus see services --output json
    """
    catalogue, refusal = await _catalogue(admin)
    refused, found = refused_of(catalogue), await admin.services()
    _warn_of(refusal)
    others = sorted({tool.service for tool in refused if tool.service} - {each.publication.service.id for each in found})
    columns: Columns = {
        "SERVICE": lambda each: each.publication.service.id,
        "OWNER": lambda each: each.publication.owner,
        "DIGEST": lambda each: each.publication.digest[:8],
        **titled("workers", "queued", "running", "dead"),
        "STATE": lambda each: "paused" if each.paused else each.state,
    }
    document = [
        *(_service_document(each, refused) for each in found),
        *({"id": service, "live": False, "tools": [], "refused": _reasons(refused, service)} for service in others),
    ]
    if show(output, found, columns, empty=f"no services{namespace_of()}; {_START}", document=document):
        for tool in refused:
            print_line(f"{visible(title(tool))} can't be used: {one_line(visible(tool.reason), 300)}", err=True)


def _service_document(found: ServiceOverview, refused: list[RefusedTool]) -> dict[str, Any]:
    publication = found.publication
    counts = {name: getattr(found, name) for name in ("live", "state", "gone", "workers", "queued", "running", "dead", "paused")}
    return {
        "id": publication.service.id,
        "owner": publication.owner,
        "digest": publication.digest,
        **counts,
        "tools": [tool.name for tool in publication.tools],
        "refused": _reasons(refused, publication.service.id),
    }


@command("describe", JSON)
def describe_command(name: str) -> None:
    """Show everything known about a tool or a service, as JSON.

    \b
    Example:
      toolbus see describe calculator
    """
    catalogue, _ = with_admin(_catalogue)
    if name in catalogue.tools:
        print_json(_tool(catalogue.tools[name]))
        return
    service = _service(name, catalogue)
    if service is not None:
        print_json({**service, "refused": _reasons(unusable(catalogue), name)})
        return
    for refused in unusable(catalogue):
        if name in {refused.name, refused.service}:
            fail(f"{refused.name} of {refused.service} can't be used: {one_line(refused.reason, 300)}")
    near = difflib.get_close_matches(name, {*catalogue.names(), *catalogue.services, *catalogue.static_services}, n=3, cutoff=0.5)
    fail(f"there is no tool or service {name!r}{namespace_of()}" + did_you_mean(near, str))


@command("settings")
def settings_command(output: Output) -> None:
    """Show each setting, its value, and the source of the value.

    As JSON, also its meaning.
    """
    meanings = Settings.meanings()
    found = {
        name: {"value": redact(str(value)) if name == "url" else value, "source": source, "meaning": meanings.get(name, "")}
        for name, (value, source) in Settings.sources(**(click.get_current_context().find_root().obj or {})).items()
    }
    rows = [{"setting": name, **each, "variable": PREFIX + name.upper()} for name, each in found.items()]
    show(output, rows, titled("setting", "value", "source", "variable"), empty="", document=found)


async def _catalogue(admin: Admin) -> tuple[Catalogue, str]:
    """Return the tools as an agent has them, and why the server refuses writes.

    It reads the registry alone: whoever watches may not open a reply stream.
    """
    return catalogue_of(await admin.snapshot(), require_approval=settings_of().require_approval), await admin.refusal()


def _reasons(refused: list[RefusedTool], service: str) -> list[dict[str, str]]:
    return [{"name": tool.name, "reason": tool.reason} for tool in refused if tool.service == service]


def _tool(tool: Tool) -> dict[str, Any]:
    served = {} if tool.service_descriptor is None else {"served_by": tool.service_descriptor.id}
    return {**tool_document(tool.descriptor), "available": tool.available, "owner": tool.owner, "digest": tool.digest, **served}


def _service(name: str, catalogue: Catalogue) -> dict[str, Any] | None:
    """Return what its workers publish of a service, what an operator says of it, and who serves it; None if it is unknown."""
    record, static = catalogue.services.get(name), catalogue.static_services.get(name)
    descriptor, available = catalogue.service(name)
    added = [tool.name for tool in catalogue.tools.values() if tool.service == name and tool.owner == "operator"]
    if record is None and static is None and not added:
        return None
    described: dict[str, Any] = {} if record is None else msgspec.to_builtins(record)
    if static is not None:
        described["static"] = msgspec.to_builtins(static)
    if descriptor is not None and descriptor.id != name:
        described["served_by"] = descriptor.id
    return {"id": name, "available": available, **described, "static_tools": sorted(added)}


@command("workers")
def workers_command(output: Output) -> None:
    """List the installed tool services. Each is listed with the extras and settings that it needs.

    Serve one with `toolbus worker NAME`; `toolbus see services` counts the workers that run. Packages offer services through the
    entry-point group toolbus.workers.

    \b
    Example:
      toolbus see workers
      toolbus worker calculator text
    """
    from toolbus.bus.worker.loading import describe, installed_services

    found = [(service, describe(service)) for service in installed_services()]
    document = [
        {
            **{name: getattr(service, name) for name in ("name", "target", "requirement")},
            **{name: getattr(described, name) for name in ("summary", "settings")},
        }
        for service, described in found
    ]
    columns: Columns = {"NAME": "name", "NEEDS": "requirement", "DESCRIPTION": "summary"}
    if show(output, document, columns, empty="no installed package offers services"):
        settings = [(service.name, variable, meaning) for service, described in found for variable, meaning in described.settings.items()]
        if settings:
            print_line()
            print_table(("NAME", "SETTING", "MEANING"), settings, empty="")


# -- what workers count and tell ---------------------------------------------------------------------


@command("stats")
async def stats_command(
    admin: Admin,
    service: str | None,
    instance: Annotated[bool, option("A row for each worker process instead of each tool.")],
    patience: Annotated[float, option("Seconds that workers have to answer.", type=Seconds(60), default=1.0)],
    output: Output,
) -> None:
    """Ask the workers for their statistics. They count since they started: calls, failures, latencies.

    Those of SERVICE answer, or all. Whoever does not answer in time is named.

    \b
    Example:
      toolbus see stats
      toolbus see stats calculator --instance
    """
    if service:
        await must_be_known(admin, service)
    found = await admin.statistics(service or "", patience=patience)
    _must_be_able_to_answer(found)
    if not emit(output, _statistics_document(found, service)):
        return
    _show_statistics(found, service, instance=instance)
    if found.silent:
        total = len(found.answers) + len(found.silent)
        warn(f"{len(found.silent)} of {total} workers did not answer within {patience:g} s: {names_of(found.silent)}")


def _must_be_able_to_answer(found: Statistics) -> None:
    fail_if(found.refusal, f"workers can't answer: {_refused_by_server(found.refusal)}")


def _warn_of(refusal: str) -> None:
    if refusal:
        warn(_refused_by_server(refusal))


def _refused_by_server(refusal: str) -> str:
    return f"the server takes nothing new ({one_line(refusal, 200)}); `toolbus doctor` says what to do"


def _statistics_document(found: Statistics, service: str | None) -> dict[str, Any]:
    answers = msgspec.to_builtins(list(found.answers.values()))
    for answer in answers:
        if service:
            answer["tools"] = [tool for tool in answer.get("tools", ()) if tool["service"] == service]
    silent = [{"instance": name, "services": services} for name, services in found.silent.items()]
    return {"bounds_ms": BOUNDS, "instances": answers, "silent": silent}


def _show_statistics(found: Statistics, service: str | None, *, instance: bool) -> None:
    from toolbus.bus.watch.watch import Activity, ToolViews, instance_views

    activity = Activity(0.0)
    activity.take_in(found.answers)
    ends: Columns = {"FAILED": "failures", "CANCELLED": "cancelled", "RETAKEN": "retaken"}
    if instance:
        columns: Columns = {
            "WORKER": "id",
            "HOST": lambda view: view.host if view.answered else "(no answer)",
            **_columns("workers", "PID", "UP", "SLOTS"),
            "CALLS": "calls",
            **ends,
            **_columns("workers", "VERSION", "SERVICES"),
        }
        show("text", instance_views(found, activity), columns, empty=f"no workers{namespace_of()}")
        return
    columns = {
        "SERVICE": "service",
        "TOOL": lambda view: view.name or "(any)",
        "CALLS": "started",
        **ends,
        **titled("refused", "running"),
        **_columns("tools", "P50", "P99", "LAST ERROR"),
    }
    views = [view for view in ToolViews().make((), activity) if not service or view.service == service]
    show("text", views, columns, empty=f"no calls since the workers started{namespace_of()}")


def _columns(name: str, *titles: str) -> Columns:
    """Return columns of a table that ``top`` has, too: all, or those with these titles."""
    from toolbus.operations.tables import TABLES

    return {each.title: each.text for each in TABLES[name].columns if not titles or each.title in titles}


@command("usage")
def usage_command(
    days: Annotated[int, option("How many days (UTC); today is the first.", type=click.IntRange(1, 40), default=1)],
    users: Annotated[tuple[str, ...], option("Only this user (may be repeated).", "--user")],
    tools: Names,
    models: Annotated[bool, option("Tokens and prices of coding agents' tasks, by tool and task, instead.")],
    output: Output,
) -> None:
    """Show the usage of tools by user. It counts calls, errors, milliseconds, and bytes of the answers.

    Workers count it when they run with the middleware toolbus.middleware.Metering. With --models it shows what coding agents spent on
    models; tasks are kept for 7 days.

    \b
    Examples:
      toolbus see usage --days 7 --user alice
      toolbus see usage --days 7 --models
    """

    def chosen(found: Iterable[Any]) -> list[Any]:
        return [each for each in found if (not users or each.user in users) and (not tools or each.tool in tools)]

    if models:
        _show_models(chosen, days, output)
        return
    show(
        output,
        chosen(with_admin(lambda admin: admin.tallies.usage(days))),
        titled("user", "tool", "calls", "errors", "ms", "bytes"),
        empty=f"nothing was counted{namespace_of()}; workers count with the middleware Metering()",
    )


def _show_models(chosen: Any, days: int, output: str) -> None:
    """Print what tasks of coding agents cost."""
    from toolbus.platform.states import costs_of

    found = chosen(costs_of(with_admin(lambda admin: admin.creations.overview(MOST_ENDED)), days))
    if not emit(output, found):
        return
    rows = [
        (each.tool, each.task, each.user, each.status, each.prompt_tokens, each.completion_tokens, f"{each.price:.4f}") for each in found
    ]
    if len(rows) > 1:
        total = [sum(getattr(each, name) for each in found) for name in ("prompt_tokens", "completion_tokens", "price")]
        rows.append(("all", "", "", "", total[0], total[1], f"{total[2]:.4f}"))
    nothing = f"no coding agent had a task{namespace_of()} in these days (UTC); --days 7 looks further back"
    print_table(("TOOL", "TASK", "USER", "STATUS", "PROMPT", "COMPLETION", "PRICE"), rows, empty=nothing)


# As many as the server keeps, about.
_MOST = 1_200
_EVERY = 0.5
_UNTAKEN = "calls that no worker took are never among them"
_FAILED = frozenset({"failed", "cancelled", "retried", "lost", "dead"})


@command("calls")
def calls_command(
    tool: Annotated[str | None, option("Only calls of this tool.")],
    service: Annotated[str | None, option("Only calls of this service.")],
    user: Annotated[str | None, option("Only calls for this user.")],
    call: Annotated[str | None, option("Only the attempts of calls whose id starts with this.")],
    failed: Annotated[bool, option("Only attempts that did not succeed.")],
    error: Annotated[str | None, option("Only attempts that ended with an error of this type.")],
    since: Annotated[
        str | None,
        option("Look into the kept history, for what ended since then: a time ago such as 30m, 12h or 7d, or a date.", needs=("history",)),
    ],
    history: Annotated[str | None, option("The file of the history.", metavar="PLACE", envvar="TOOLBUS_HISTORY_STORE", show_envvar=True)],
    running: Annotated[bool, option("The calls that run now instead, asked from the workers; the longest first.")],
    limit: Annotated[int, option("At most so many, the newest ones.", type=click.IntRange(1, _MOST), default=50)],
    follow: Annotated[bool, option("Go on with new ones as they come, until Ctrl-C; JSON has one document per line.")],
    output: Output,
) -> None:
    """Show the attempts of recent calls, and what runs. The oldest one comes first.

    Workers tell of some of them: of all while there are few, and of at most ten a second each while there are many. Attempts that
    did not succeed have a share of their own. TOOLBUS_RECENT=off at a worker turns that off.

    With --running, each worker names a hundred calls at most, those that have run longest.

    \b
    Examples:
      toolbus see calls --failed --follow
      toolbus see calls --running --tool search
      toolbus see calls --since 1d --history calls.db --user ann --error deadline_exceeded
    """
    given = {"tool": tool, "service": service, "user": user, "error": error}
    wanted = {name: value for name, value in given.items() if value is not None}
    wrong_if(running and (failed or follow or error), "--running shows calls that have not ended; leave out --failed, --error and --follow")
    wrong_if(since is not None and (running or follow), "--since shows what has ended; leave out --running and --follow")
    if since is None and click.get_current_context().get_parameter_source("history") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--history needs --since, such as --since 7d")
    if since is not None:
        _show_kept(history or "", since, wanted, call or "", output, failed=failed, limit=limit)
        return

    def chosen(found: Iterable[C]) -> list[C]:
        named = (each for each in found if all(getattr(each, name) == value for name, value in wanted.items()))
        # Calls that run have no outcome, and are not looked for with --failed.
        return [each for each in named if each.id.startswith(call or "") and (not failed or getattr(each, "outcome", "") in _FAILED)]

    async def main(admin: Admin) -> None:
        if running:
            from toolbus.bus.watch.watch import running_calls

            statistics = await admin.statistics(service or "")
            _print_running(chosen(running_calls(statistics.answers.values()))[:limit], statistics, output)
            return
        everything = await admin.recent(_MOST)
        found = chosen(everything)[:limit][::-1]
        if not follow:
            documents = [each.document() for each in found]
            show(output, found, _columns("calls"), empty=_none_of(everything, error), document=documents)
            return
        after = everything[0].entry if everything else "0-0"
        while True:
            for each in found:
                _print_line(each, output)
            await asyncio.sleep(_EVERY)
            new, after = await admin.recent_after(after)
            found = chosen(new)

    with_admin(main)


def _none_of(calls: Sequence[RecentCall], error: str | None) -> str:
    """Return what to say when no recent attempt is one that was looked for, with the types that ``error`` may name."""
    if not calls:
        return f"no recent calls{namespace_of()}; {_UNTAKEN}"
    types = sorted({each.error for each in calls if each.error}) if error is not None else []
    hint = f"; --error takes a type, of which they have {names_of(types)}" if types else ""
    return f"none of the {len(calls)} recent attempts{namespace_of()} is such a one{hint}; {_UNTAKEN}"


def _show_kept(place: str, since: str, wanted: dict[str, str], call: str, output: str, *, failed: bool, limit: int) -> None:
    """Print what is found in the kept history."""
    from toolbus.operations.history import Wanted, find

    kept = find(place, Wanted(_moment(since), wanted, call, failed, limit))
    documents = [each.document() for each in kept.calls]
    show(output, kept.calls, _columns("calls"), empty=f"no such calls are in {place}; {_UNTAKEN}", document=documents)
    if kept.missing:
        warn(f"{kept.missing} attempts of that time are not in the history: workers told of more than were kept, or of fewer than ended")


def _moment(text: str) -> float:
    """Return the time that is so long ago, or that a date names, in seconds since 1970."""
    seconds = seconds_of(text)
    if seconds is not None:
        return time.time() - seconds
    found = date_of(text, "--since is a time ago such as 30m, 12h or 7d")
    wrong_if(found > time.time(), f"--since {text[:50]} is in the future; a date without a zone is one of UTC")
    return found


def _print_running(found: list[RunningCall], statistics: Statistics, output: str) -> None:
    _must_be_able_to_answer(statistics)
    documents = [msgspec.structs.asdict(each) for each in found]
    show(output, found, _columns("running"), empty=f"no running calls{namespace_of()}", document=documents)
    held = sum(answer.running for answer in statistics.answers.values())
    named = sum(len(answer.calls) for answer in statistics.answers.values())
    if held > named:
        warn(f"workers hold {held - named} more calls than they name")
    if statistics.silent:
        warn(f"workers that did not answer: {names_of(statistics.silent)}")


def _print_line(call: RecentCall, output: str) -> None:
    from toolbus.operations.tables import TABLES

    if output == "json":
        print_json_line(call.document())
    else:
        print_line("  ".join(map(visible, TABLES["calls"].cells(call))), fg="red" if call.outcome in _FAILED else None)


@command("top")
def top_command(
    every: Annotated[float, option("Seconds between two snapshots.", type=Seconds(3600), default=1.0)],
    once: Annotated[bool, option("Print one snapshot, with the rates of the seconds of --every, and end.")],
    output: Output,
) -> None:
    """Watch services, workers, tools and calls in the terminal. The keys are shown below; q ends it.

    \b
    Example:
      toolbus see top
      toolbus see top --once --output json
    """
    settings = settings_with_server()
    if once:
        _print_snapshot(asyncio.run(_snapshot(settings, every)), output)
        return
    wrong_if(output == "json", "--output json goes with --once")
    try:
        from toolbus.operations.top import Top
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("textual"):
            raise
        fail("top needs textual: pip install 'toolbus[top]'; `toolbus see top --once` does without")
    fail_if(not (sys.stdin.isatty() and sys.stdout.isatty()), "top needs a terminal; `toolbus see top --once` prints one snapshot")
    app = Top(settings, every=every)
    # What was loaded stays for good, and what a snapshot leaves behind is freed by counting.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    app.run()
    sys.exit(app.return_code or 0)


async def _snapshot(settings: Settings, every: float) -> Snapshot:
    from toolbus.bus.watch.watch import Watch

    async with Watch(settings, patience=1.0) as watch:
        await watch.sample()
        await asyncio.sleep(every)
        return await watch.sample()


def _print_snapshot(snapshot: Snapshot, output: str) -> None:
    from toolbus.operations.tables import TABLES

    if not emit(output, msgspec.to_builtins(snapshot)):
        return
    for fault in snapshot.faults:
        warn(visible(fault))
    for number, table in enumerate(TABLES.values()):
        rows = table.sorted(table.rows(snapshot), *table.first[:1], down=table.first[1])
        if not rows and number:
            continue
        print_line(f"{'' if not number else chr(10)}{table.title}")
        print_table([column.title for column in table.columns], map(table.cells, rows), empty=table.empty)
    for problem in snapshot.problems:
        warn(f"could not be read: {visible(problem)}")
    if snapshot.silent:
        warn(f"did not answer: {visible(', '.join(snapshot.silent))}")


# -- doctor --------------------------------------------------------------------------------------------


@command("doctor")
def doctor_command(
    deep: Annotated[bool, option("Also try calls, a stream, a cancellation and a worker's death, with a service of its own.")],
    output: Output,
) -> None:
    """Check the server, the services and their workers, and say what to fix: first what is wrong, each with its runbook.

    It ends with 1 when a check has the state `fail`: calls fail or wait now, or the server can't be asked. It ends with 0 also with
    warnings, such as of a service without workers for which nothing waits; `--output json` has the state of each check.

    --deep needs the rights of an agent and a worker (`toolbus secure acl agent worker`), takes some seconds, and leaves nothing behind.
    """
    from toolbus.operations.diagnosis import diagnose

    findings = asyncio.run(diagnose(settings_with_server(), deep=deep))
    columns = {"CHECK": "check", "STATE": "state", "FOUND": "found", "RUNBOOK": "runbook"}
    document = [{name: value for name, value in finding._asdict().items() if value} for finding in findings]
    show(output, findings, columns, empty="", document=document)
    fail_if(any(finding.state == "fail" for finding in findings), "something must be fixed, see above")
