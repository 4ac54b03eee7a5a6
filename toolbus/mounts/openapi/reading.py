"""Read an OpenAPI document from a file or an address: bounded, and as plain JSON values."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from toolbus.mounts.openapi.web import Web
from toolbus.mounts.targets import check_address
from toolbus.outbound import Answer
from toolbus.results import ConfigurationError, ToolError
from toolbus.safe_text import reason_of, type_name

MOST_BYTES = 20_000_000
# Parts of a document; aliases of YAML can make a short text endless.
_MOST_PARTS = 2_000_000
_MOST_LEVELS = 100
_SECONDS = 60.0


def is_address(place: str) -> bool:
    """Return whether a document is at an address, not in a file."""
    return place.startswith(("http://", "https://"))


async def read_document(place: str, web: Web) -> dict[str, Any]:
    """Return a document.

    Args:
        place: a file, or an address, whose host counts as named by the operator.
        web: fetches it.

    Raises:
        ConfigurationError: it can't be read, or is no OpenAPI document of version 3; says why.
    """
    data = await _fetched(place, web) if is_address(place) else await asyncio.to_thread(_file, Path(place))
    # A large document keeps a thread busy, not the event loop.
    document: Any = await asyncio.to_thread(_parsed, data)
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    version = found.get("openapi")
    if "swagger" in found:
        raise ConfigurationError("the document is of Swagger 2; convert it to OpenAPI 3 first (converter.swagger.io does)")
    if not isinstance(version, str) or not version.startswith("3."):
        raise ConfigurationError("that is no OpenAPI document: it lacks `openapi: 3…` at its top")
    if not isinstance(found.get("paths"), dict):
        raise ConfigurationError("the document has no paths, so there is nothing to serve")
    return found


async def _fetched(place: str, web: Web) -> bytes:
    try:
        async with asyncio.timeout(_SECONDS):
            answer: Answer = await web.get(check_address(place), MOST_BYTES)
    except TimeoutError:
        raise ConfigurationError(f"the document did not arrive within {_SECONDS:g} s") from None
    except ToolError as error:
        raise ConfigurationError(f"the document can't be fetched: {error.error.message}") from None
    if answer.status != 200:
        raise ConfigurationError(f"the document can't be fetched: its server answers {answer.status}")
    return answer.body


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES:,} bytes")
    return data


def _parsed(data: bytes) -> Any:
    try:
        document = msgspec.json.decode(data)
    except msgspec.DecodeError:
        document = _yaml(data)
    except RecursionError:
        raise ConfigurationError("the document is nested too deeply") from None
    _bound(document)
    return document


def _yaml(data: bytes) -> Any:
    try:
        import yaml  # noqa: PLC0415 - most documents are JSON
    except ModuleNotFoundError:
        raise ConfigurationError("the document is not JSON; to read YAML: pip install pyyaml") from None
    try:
        # Dates and the like become texts, as they are in JSON.
        return yaml.load(data, Loader=_loader(yaml))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = reason_of(error).partition("\n")[0] or type_name(error)
        raise ConfigurationError(f"the document is neither JSON nor YAML: {reason}") from None


def _loader(yaml: Any) -> Any:
    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the faster one, where it was built
        pass

    resolvers = {}
    for first, rules in Loader.yaml_implicit_resolvers.items():
        resolvers[first] = [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    Loader.yaml_implicit_resolvers = resolvers
    return Loader


def _bound(document: Any) -> None:
    """Check that a document is no more than can be looked through, however often its parts are shared."""
    parts, level = 0, [document]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                if not all(isinstance(key, (str, int, float, bool)) for key in part):
                    raise ConfigurationError("the document has a key that is no text")
                below += part.values()
            elif isinstance(part, list):
                below += part
            parts += 1
            if parts + len(below) > _MOST_PARTS:
                raise ConfigurationError(f"the document has more than {_MOST_PARTS:,} parts")
        if not below:
            return
        level = below
    raise ConfigurationError(f"the document is nested more than {_MOST_LEVELS} levels deep")
