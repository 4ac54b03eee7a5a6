"""``get_weather``: report the current weather and the forecast for any place.

``toolbus worker get_weather`` (needs ``toolbus[web]``). The data comes from Open-Meteo, without a key. For another source,
give ``GetWeather`` your own provider with one method, see ``WeatherProvider``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus import ToolResult, ToolService
from toolbus_workers.typed_arguments import parameters, read_arguments, read_config
from toolbus_workers.web.weather import MAX_DAYS, WEATHER_SECONDS, Day, OpenMeteo, Report, WeatherProvider

MAX_LOCATION = 200

_WINDS = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")


class Arguments(msgspec.Struct, frozen=True):
    """The arguments from the model."""

    location: Annotated[
        str,
        Meta(
            min_length=1, max_length=MAX_LOCATION, description="a place by name, such as 'Springfield, Illinois', or 'latitude, longitude'"
        ),
    ]
    days: Annotated[int, Meta(ge=1, le=MAX_DAYS, description="how many days to forecast, today among them")] = 3


class Config(msgspec.Struct, frozen=True):
    """The config values from a tool's descriptor.

    Attributes:
        units: ``metric`` or ``imperial``.
        language: language of the names of places, such as ``de``.
    """

    units: Literal["metric", "imperial"] = "metric"
    language: Annotated[str, Meta(pattern=r"^[a-z]{2}$")] = "en"


class GetWeather(ToolService):
    """Reports the weather.

    Args:
        provider: source of the weather; Open-Meteo when left out.
    """

    id = "get-weather"
    description = "Tells the weather anywhere"
    config_params = Config.__struct_fields__
    effect = "read"
    tools = [  # noqa: RUF012 - a declaration, read once when the service registers
        {
            "name": "get_weather",
            "description": "Tell the current weather at a place and the forecast for the next days.",
            "parameters": parameters(Arguments),
            "category": "weather",
            "groups": ["web"],
            "timeout": 2 * WEATHER_SECONDS + 10,
        }
    ]

    def __init__(self, provider: WeatherProvider | None = None) -> None:
        self._provider = provider or OpenMeteo()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> ToolResult:
        """Get the weather and return it as data and text."""
        wanted, options = read_arguments(Arguments, arguments), read_config(Config, config)
        report = await self._provider.report(
            wanted.location, days=wanted.days, imperial=options.units == "imperial", language=options.language
        )
        return ToolResult.ok(msgspec.to_builtins(report), output=shown(report))


def shown(report: Report) -> str:
    """Return a report as text, one line per day, without unknown values."""
    now, units = report.current, report.units
    wind = _with(now.wind, f" {units.wind}", "wind ")
    if wind and now.wind_direction is not None:
        wind += f" from {_WINDS[round(now.wind_direction / 45) % 8]}"
    parts = (
        now.sky,
        _with(now.temperature, f" {units.temperature}"),
        _with(now.feels_like, f" {units.temperature}", "feels like "),
        _with(now.humidity, " %", "humidity "),
        _with(now.precipitation, f" {units.precipitation}", "precipitation "),
        wind,
    )
    lines = [f"{report.place.name}, {now.time} ({report.timezone})", f"Now: {', '.join(part for part in parts if part)}"]
    return "\n".join([*lines, *(_day(day, report) for day in report.days)])


def _day(day: Day, report: Report) -> str:
    units = report.units
    parts = (
        day.sky,
        _with(day.lowest, f" {units.temperature}", "lowest "),
        _with(day.highest, f" {units.temperature}", "highest "),
        _with(day.precipitation, f" {units.precipitation}", "precipitation "),
        _with(day.precipitation_probability, " %", "probability "),
        _with(day.wind, f" {units.wind}", "wind up to "),
    )
    return f"{day.date}: {', '.join(part for part in parts if part)}"


def _with(value: float | None, unit: str, what: str = "") -> str:
    return "" if value is None else f"{what}{value:g}{unit}"
