"""The catalogue that the environment names, and the hook that runs after a registration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from toolbus import telemetry
from toolbus.platform.catalogue.file import FileCatalogue
from toolbus.platform.catalogue.http import HttpCatalogue
from toolbus.platform.catalogue.items import Catalogue
from toolbus.platform.catalogue.synchronise import Report, synchronise
from toolbus.platform.store import Records
from toolbus.results import ConfigurationError, ToolbusError
from toolbus.secrets import secret

PLACE = "TOOLBUS_CATALOGUE"
"""Names a JSON file, or the base URL of an HTTP API."""

TOKEN = "TOOLBUS_CATALOGUE_TOKEN"  # noqa: S105 - the name of a variable
"""Says where the API's bearer token is: ``env:NAME`` or ``file:PATH``."""


def catalogue_at(place: str, token: str = "") -> Catalogue:
    """Return the catalogue at a URL or a path.

    Args:
        place: begins with ``http://`` or ``https://``, or is the path of a file.
        token: where a bearer token is, ``env:NAME`` or ``file:PATH``; empty for none.

    Raises:
        ConfigurationError: there is no token at that place.
    """
    if place.startswith(("http://", "https://")):
        return HttpCatalogue(place, secret(token).value() if token else "")
    if "://" in place:
        raise ConfigurationError("a catalogue is a JSON file, or an http:// or https:// URL")
    return FileCatalogue(Path(place))


def configured(environ: Mapping[str, str]) -> Catalogue | None:
    """Return the catalogue that the environment names, or None.

    Raises:
        ConfigurationError: what it names can't be used.
    """
    place = environ.get(PLACE, "")
    return catalogue_at(place, environ.get(TOKEN, "")) if place else None


class CatalogueSync:
    """Synchronises after a registration; call it with anything. A catalogue that is down is logged, and keeps nothing from going on."""

    def __init__(self, records: Records, catalogue: Catalogue) -> None:
        self._records = records
        self._catalogue = catalogue

    async def __call__(self, _: object = None) -> Report | None:
        """Synchronise; None when it could not be done."""
        try:
            report = await synchronise(self._records, self._catalogue)
        except ToolbusError as error:
            telemetry.log.warning("catalogue.failed", error=str(error))
            return None
        for each in report.changes:
            telemetry.log.info("catalogue.connected", slug=each.slug, kind=each.kind, id=each.id, why=each.why)
        return report


def hook_of(records: Records, environ: Mapping[str, str]) -> CatalogueSync | None:
    """Return what runs after a registration, if the environment names a catalogue.

    Raises:
        ConfigurationError: what it names can't be used.
    """
    catalogue = configured(environ)
    return None if catalogue is None else CatalogueSync(records, catalogue)
