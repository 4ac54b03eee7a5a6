"""Everything in a registry that agents can't use, with the reason, for those who look after it."""

from __future__ import annotations

from collections.abc import Mapping

from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.schema.dialects import check_possible
from toolbus.bus.values.results import DescriptorError


def unusable(catalogue: Catalogue) -> list[RefusedTool]:
    """Return what agents leave out, and the tools that they know and can't call, sorted."""
    found: list[RefusedTool] = []
    for tool in catalogue.tools.values():
        try:
            check_possible(tool.descriptor.schema or {})
        except DescriptorError as error:
            found.append(RefusedTool(tool.name, tool.service, str(error)))
    return sorted([*catalogue.refused(), *found])


def catalogue_of(
    snapshot: tuple[Mapping[str, ServiceRecord | RefusedTool], Mapping[str, bytes | RefusedTool]], *, require_approval: bool = False
) -> Catalogue:
    """Return a catalogue as an agent has it that loads this snapshot of services and static documents."""
    catalogue = Catalogue(require_approval=require_approval)
    catalogue.on_registry(*snapshot)
    return catalogue
