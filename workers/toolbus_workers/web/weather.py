"""``OpenMeteo``: get places and forecasts from open-meteo.com, which needs no key."""

from __future__ import annotations

import re
from typing import Protocol, TypeVar

import httpx
import msgspec

from toolbus import ToolError
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus_workers.web.fetch import FetchService, Limits

GEOCODING = "https://geocoding-api.open-meteo.com/v1/search"
FORECAST = "https://api.open-meteo.com/v1/forecast"
MAX_DAYS = 16
WEATHER_SECONDS = 10.0

_LIMITS = Limits(bytes=500_000, seconds=WEATHER_SECONDS, redirects=2)
_COORDINATES = re.compile(r"\s*(-?\d{1,3}(?:\.\d{1,10})?)\s*[,; ]\s*(-?\d{1,3}(?:\.\d{1,10})?)\s*")
_CURRENT = "temperature_2m,apparent_temperature,relative_humidity_2m,precipitation,weather_code,wind_speed_10m,wind_direction_10m"
_DAILY = "weather_code,temperature_2m_min,temperature_2m_max,precipitation_sum,precipitation_probability_max,wind_speed_10m_max"
_IMPERIAL = {"temperature_unit": "fahrenheit", "wind_speed_unit": "mph", "precipitation_unit": "inch"}
# The codes of the World Meteorological Organization, as far as forecasts use them.
_SKIES = {
    0: "clear sky", 1: "mainly clear", 2: "partly cloudy", 3: "overcast", 45: "fog", 48: "freezing fog",
    51: "light drizzle", 53: "drizzle", 55: "heavy drizzle", 56: "light freezing drizzle", 57: "freezing drizzle",
    61: "light rain", 63: "rain", 65: "heavy rain", 66: "light freezing rain", 67: "freezing rain",
    71: "light snow", 73: "snow", 75: "heavy snow", 77: "snow grains",
    80: "light showers", 81: "showers", 82: "violent showers", 85: "light snow showers", 86: "snow showers",
    95: "thunderstorm", 96: "thunderstorm with hail", 99: "thunderstorm with heavy hail",
}  # fmt: skip

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """A place on Earth; ``name`` is for people."""

    name: str
    latitude: float
    longitude: float


class Units(msgspec.Struct, frozen=True):
    """The units of a report's numbers; humidity and probability are in percent."""

    temperature: str
    precipitation: str
    wind: str


class Now(msgspec.Struct, frozen=True):
    """The weather at one time; unknown values are None."""

    time: str
    sky: str
    temperature: float | None
    feels_like: float | None
    humidity: float | None
    precipitation: float | None
    wind: float | None
    wind_direction: float | None


class Day(msgspec.Struct, frozen=True):
    """The forecast for one day; unknown values are None."""

    date: str
    sky: str
    lowest: float | None
    highest: float | None
    precipitation: float | None
    precipitation_probability: float | None
    wind: float | None


class Report(msgspec.Struct, frozen=True):
    """The weather of a place, in its local time."""

    place: Place
    timezone: str
    units: Units
    current: Now
    days: tuple[Day, ...]


class WeatherProvider(Protocol):
    """A source of weather reports."""

    async def report(self, location: str, *, days: int, imperial: bool, language: str) -> Report:
        """Return the current weather and the forecast for a place, given by name or as ``latitude, longitude``.

        Raises:
            ToolError: there is no such place, or no report.
        """


class OpenMeteo:
    """Open-Meteo's public service.

    Args:
        fetching: fetches the answers.
        geocoding, forecast: addresses of another instance of the service.
    """

    def __init__(self, fetching: FetchService | None = None, *, geocoding: str = GEOCODING, forecast: str = FORECAST) -> None:
        self._fetching = fetching or FetchService()
        self._geocoding = geocoding
        self._forecast = forecast

    async def report(self, location: str, *, days: int, imperial: bool, language: str) -> Report:
        """Find the place and return its weather."""
        place = _coordinates(location) or await self._place(location, language)
        asked: dict[str, str | int | float] = {"latitude": place.latitude, "longitude": place.longitude, "timezone": "auto"}
        asked |= {"current": _CURRENT, "daily": _DAILY, "forecast_days": days, **(_IMPERIAL if imperial else {})}
        return _report(place, await self._ask(self._forecast, asked, _Forecast), days)

    async def _place(self, location: str, language: str) -> Place:
        name, *narrower = [part.strip() for part in location.split(",")]
        # The service looks up names of at least two letters.
        if len(name) < 2:
            raise _no_place(location, [])
        found = await self._ask(self._geocoding, {"name": name, "count": 20, "language": language, "format": "json"}, _Places)
        wanted = {part.casefold() for part in narrower if part}
        for candidate in found.results:
            if wanted <= candidate.names():
                return Place(candidate.title, candidate.latitude, candidate.longitude)
        raise _no_place(location, [candidate.title for candidate in found.results[:5]])

    async def _ask(self, address: str, asked: dict[str, str | int | float], answer: type[T]) -> T:
        try:
            page = await self._fetching.fetch(str(httpx.URL(address, params=asked)), _LIMITS)
            return msgspec.json.decode(page.body, type=answer)
        except DECODE_ERRORS:
            raise _bad_answer() from None
        except ToolError as error:
            raise _unanswered(error) from None


class _Found(msgspec.Struct):
    name: str
    latitude: float
    longitude: float
    country: str = ""
    country_code: str = ""
    admin1: str = ""
    admin2: str = ""

    @property
    def title(self) -> str:
        return ", ".join(dict.fromkeys(part for part in (self.name, self.admin1, self.country) if part))

    def names(self) -> set[str]:
        return {part.casefold() for part in (self.country, self.country_code, self.admin1, self.admin2)}


class _Places(msgspec.Struct):
    results: list[_Found] = []


class _Current(msgspec.Struct):
    time: str
    temperature_2m: float | None = None
    apparent_temperature: float | None = None
    relative_humidity_2m: float | None = None
    precipitation: float | None = None
    weather_code: float | None = None
    wind_speed_10m: float | None = None
    wind_direction_10m: float | None = None


class _Daily(msgspec.Struct):
    time: list[str]
    weather_code: list[float | None] = []
    temperature_2m_min: list[float | None] = []
    temperature_2m_max: list[float | None] = []
    precipitation_sum: list[float | None] = []
    precipitation_probability_max: list[float | None] = []
    wind_speed_10m_max: list[float | None] = []


class _CurrentUnits(msgspec.Struct):
    temperature_2m: str = ""
    precipitation: str = ""
    wind_speed_10m: str = ""


class _Forecast(msgspec.Struct):
    current: _Current
    daily: _Daily
    timezone: str = ""
    current_units: _CurrentUnits = msgspec.field(default_factory=_CurrentUnits)


def _report(place: Place, forecast: _Forecast, days: int) -> Report:
    now, daily, units = forecast.current, forecast.daily, forecast.current_units
    return Report(
        place,
        forecast.timezone,
        Units(units.temperature_2m, units.precipitation, units.wind_speed_10m),
        Now(
            now.time,
            _sky(now.weather_code),
            now.temperature_2m,
            now.apparent_temperature,
            now.relative_humidity_2m,
            now.precipitation,
            now.wind_speed_10m,
            now.wind_direction_10m,
        ),
        tuple(
            Day(
                date,
                _sky(_at(daily.weather_code, number)),
                _at(daily.temperature_2m_min, number),
                _at(daily.temperature_2m_max, number),
                _at(daily.precipitation_sum, number),
                _at(daily.precipitation_probability_max, number),
                _at(daily.wind_speed_10m_max, number),
            )
            for number, date in enumerate(daily.time[:days])
        ),
    )


def _at(values: list[float | None], number: int) -> float | None:
    return values[number] if number < len(values) else None


def _sky(code: float | None) -> str:
    return _SKIES.get(int(code), f"weather code {code:g}") if code is not None else "unknown"


def _coordinates(location: str) -> Place | None:
    found = _COORDINATES.fullmatch(location)
    if found is None:
        return None
    latitude, longitude = float(found[1]), float(found[2])
    if abs(latitude) > 90 or abs(longitude) > 180:
        message = f"{location!r} is no place on Earth; give the latitude (-90 to 90) first, then the longitude (-180 to 180)"
        raise ToolError(message, type="invalid_arguments", code="bad_coordinates")
    return Place(f"{latitude:g}, {longitude:g}", latitude, longitude)


def _no_place(location: str, instead: list[str]) -> ToolError:
    known = f"; there are: {'; '.join(instead)}" if instead else ""
    message = f"no place is known as {location!r}{known}; check the spelling, name a larger place nearby, or give 'latitude, longitude'"
    return ToolError(message, type="not_found", code="unknown_place")


def _unanswered(error: ToolError) -> ToolError:
    """Return the error of a failed request, worded for a weather report."""
    if error.error.type == "rate_limited":
        message = "the weather service wants fewer requests; wait before asking again"
        return ToolError(message, type="rate_limited", code="rate_limited", retryable=True, retry_after=error.error.retry_after or 60)
    if error.error.type not in {"unavailable", "overloaded"} and error.error.code != "unknown_host":
        return _bad_answer()
    message = "the weather service can't be reached: it is down, or this worker has no network; try again later"
    return ToolError(message, type="unavailable", code="no_network", retryable=True, details={"cause": error.error.code})


def _bad_answer() -> ToolError:
    message = "the weather service answered with something else than weather; try again later"
    return ToolError(message, type="unavailable", code="bad_answer", retryable=True)
