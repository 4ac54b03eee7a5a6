"""Begin and end the services of a worker."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, MutableMapping

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import WorkerBroker
from toolbus.results import RegistrationRefused
from toolbus.worker.definition.provide import Services
from toolbus.worker.run.outcome import without_exits
from toolbus.worker.serving.handlers import Served
from toolbus.worker.slots.slots import Slots

_MOST_TOLD = 20


async def begin(made: Served, slots: Slots, served: MutableMapping[str, Served]) -> None:
    """Prepare and publish a service while others are ``served``; what goes wrong leaves nothing."""
    await made.startup(slots.settings)
    try:
        slots.sessions.open(made)
        # Calls may arrive as soon as it is published.
        served[made.id] = made
        await publish(slots.broker, made)
    except BaseException:
        served.pop(made.id, None)
        await slots.sessions.close(made)
        await clean_up(made)
        raise


async def end(served: Served, slots: Slots) -> None:
    """Leave the stream of a service that was withdrawn."""
    await slots.sessions.close(served)
    await slots.broker.retire(served.id)
    slots.forget(served.id)
    await clean_up(served)


async def publish(broker: WorkerBroker, served: Served) -> None:
    """Publish a service; tools whose names belong to others are left out and named, the rest goes live."""
    publication = served.publication
    try:
        await broker.register(publication, served.origin)
    except RegistrationRefused as refusal:
        kept = tuple(tool for tool in publication.tools if f"tool/{tool.name}" not in refusal.names)
        if not kept or any(not name.startswith("tool/") for name in refusal.names):
            raise
        telemetry.log.warning("tools.refused", service=served.id, error=str(refusal))
        left = msgspec.structs.replace(publication, tools=kept).with_digest()
        await broker.register(left, served.origin)
        served.publication = left
    undeclared = served.undeclared()
    if undeclared:
        telemetry.log.info("tools.undeclared_effect", service=served.id, tools=undeclared, meaning="may be re-run after a crash")


def tell(served: Iterable[Served], left_out: Mapping[str, str]) -> None:
    """Say what a worker serves, and what it left out and why."""
    every = list(served)
    tools = sorted(tool.name for each in every for tool in each.publication.tools)
    refused = dict.fromkeys((name for each in every for name in each.tools if name not in tools), "its name belongs to another owner")
    missing = {**left_out, **refused}
    fields: dict[str, object] = {"services": sorted(each.id for each in every)[:_MOST_TOLD], "tools": tools[:_MOST_TOLD]}
    if len(tools) > _MOST_TOLD:
        fields["further"] = len(tools) - _MOST_TOLD
    if missing:
        fields["left_out"] = dict(sorted(missing.items())[:_MOST_TOLD])
    if len(missing) > _MOST_TOLD:
        fields["further_left_out"] = len(missing) - _MOST_TOLD
    telemetry.log.info("worker.serving", **fields)


async def clean_up(served: Served) -> None:
    """Run a service's own clean-up; what goes wrong is logged."""
    try:
        await without_exits(served.cleanup())
    except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
        telemetry.log.exception("service.cleanup_failed", service=served.id)


async def clean_provided(services: Services) -> None:
    """Clean up what handlers were provided with; what goes wrong is logged."""
    try:
        await without_exits(services.aclose())
    except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
        telemetry.log.exception("service.cleanup_failed", service="provided")


def collect_rarely() -> None:
    """Let Python look for garbage more rarely, in a process that is only a worker.

    What was loaded stays for good, and what calls leave behind is nearly all freed by counting. It gave 10 to 20 % more calls/s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
