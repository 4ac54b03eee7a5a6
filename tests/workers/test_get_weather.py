"""``get_weather``: places by name, reports in words, and a service that answers with anything."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from toolbus_workers.get_weather import GetWeather
from toolbus_workers.web.weather import Day, Now, OpenMeteo, Place, Report, Units

from tests.workers.pages import answer, local, site
from toolbus import ToolBus, ToolError, Worker

pytestmark = pytest.mark.anyio

PLACES = {
    "results": [
        {
            "name": "Springfield",
            "latitude": 37.2,
            "longitude": -93.3,
            "country": "United States",
            "country_code": "US",
            "admin1": "Missouri",
        },
        {
            "name": "Springfield",
            "latitude": 39.8,
            "longitude": -89.6,
            "country": "United States",
            "country_code": "US",
            "admin1": "Illinois",
        },
    ]
}
FORECAST = {
    "timezone": "America/Chicago",
    "current_units": {"temperature_2m": "°C", "precipitation": "mm", "wind_speed_10m": "km/h"},
    "current": {
        "time": "2026-05-01T10:00", "temperature_2m": 12.3, "apparent_temperature": 10.0, "relative_humidity_2m": 80, "precipitation": 0.0,
        "weather_code": 3, "wind_speed_10m": 14.4, "wind_direction_10m": 350,
    },
    "daily": {
        "time": ["2026-05-01", "2026-05-02"], "weather_code": [61, None], "temperature_2m_min": [4.0, 5.5],
        "temperature_2m_max": [15.2, None],
        "precipitation_sum": [2.1, 0], "precipitation_probability_max": [60, None], "wind_speed_10m_max": [30, 20],
    },
}  # fmt: skip


def provider(there):
    return OpenMeteo(local(), geocoding=there.url("/places"), forecast=there.url("/forecast"))


def serving(places=PLACES, forecast=FORECAST, **options):
    async def respond(request, writer):
        found = places if request.target.startswith("/places") else forecast
        body = found if isinstance(found, (str, bytes)) else json.dumps(found)
        writer.write(answer(body, media_type="application/json", **options))

    return site(respond)


def query(request):
    return {name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()}


async def told(there, config=None, **arguments):
    return await GetWeather(provider(there)).invoke("alice", config or {}, arguments)


async def refused(there, config=None, **arguments):
    with pytest.raises(ToolError) as raised:
        await told(there, config, **arguments)
    return raised.value.error


async def test_weather_is_told_in_words_and_as_data():
    """The place is found by name; what the service does not know is left out."""
    async with serving() as there:
        result = await told(there, location="Springfield", days=2)
    assert result.output.splitlines() == [
        "Springfield, Missouri, United States, 2026-05-01T10:00 (America/Chicago)",
        "Now: overcast, 12.3 °C, feels like 10 °C, humidity 80 %, precipitation 0 mm, wind 14.4 km/h from N",
        "2026-05-01: light rain, lowest 4 °C, highest 15.2 °C, precipitation 2.1 mm, probability 60 %, wind up to 30 km/h",
        "2026-05-02: unknown, lowest 5.5 °C, precipitation 0 mm, wind up to 20 km/h",
    ]
    assert result.data["place"] == {"name": "Springfield, Missouri, United States", "latitude": 37.2, "longitude": -93.3}
    assert result.data["days"][1]["highest"] is None


@pytest.mark.parametrize("location", ["Springfield, Illinois", "springfield,ILLINOIS , us", "Springfield, Illinois, United States"])
async def test_region_and_country_tell_places_apart(location):
    """Every part after the name must match the place."""
    async with serving() as there:
        result = await told(there, location=location)
        assert query(there.asked[0])["name"].lower() == "springfield"
    assert result.data["place"]["longitude"] == -89.6


@pytest.mark.parametrize("location", ["52.52, 13.405", "52.52,13.405", " 52.52 13.405 "])
async def test_coordinates_are_a_place(location):
    """Without a look-up."""
    async with serving() as there:
        await told(there, location=location, days=1)
        assert [query(request).get("latitude") for request in there.asked] == ["52.52"]


async def test_config_sets_units_and_language():
    """For all calls of a tool."""
    async with serving() as there:
        await told(there, {"units": "imperial", "language": "de"}, location="Springfield", days=5)
        places, forecast = map(query, there.asked)
    assert places["language"] == "de"
    assert (forecast["temperature_unit"], forecast["wind_speed_unit"], forecast["forecast_days"]) == ("fahrenheit", "mph", "5")


@pytest.mark.parametrize("places", [{}, {"results": []}, {"generationtime_ms": 0.5}])
async def test_an_unknown_place_says_what_to_try(places):
    """Spelling, a larger place, or coordinates."""
    async with serving(places) as there:
        error = await refused(there, location="Nowhereville")
    assert (error.type, error.code) == ("not_found", "unknown_place")
    assert "latitude" in error.message


async def test_a_place_that_is_elsewhere_lists_where_it_is():
    """A model can choose from what there is."""
    async with serving() as there:
        error = await refused(there, location="Springfield, France")
    assert "Springfield, Illinois, United States" in error.message


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"location": ""},
        {"location": "x" * 201},
        {"location": "Bonn", "days": 17},
        {"location": "Bonn", "days": 0},
        {"location": "91, 0"},
    ],
)
async def test_arguments_out_of_bounds_are_refused(arguments):
    """Before anybody is asked."""
    async with serving() as there:
        assert (await refused(there, **arguments)).type == "invalid_arguments"
        assert not there.asked


@pytest.mark.parametrize("forecast", ["", "<html>", "[]", '{"current": 5}', b"\xff\xfe", json.dumps({**FORECAST, "daily": {"time": [1]}})])
async def test_an_answer_that_is_no_weather_is_an_error(forecast):
    """An answer that is no forecast becomes an error that can be retried."""
    async with serving(forecast=forecast) as there:
        error = await refused(there, location="Springfield")
    assert (error.type, error.code, error.retryable) == ("unavailable", "bad_answer", True)


async def test_no_network_is_a_clear_error():
    """Without an answer, the error says that there may be no network, and to try later."""
    async with serving() as there:
        pass
    error = await refused(there, location="Springfield")
    assert (error.type, error.code, error.retryable) == ("unavailable", "no_network", True)
    assert "no network; try again later" in error.message


@pytest.mark.parametrize(
    ("status", "media_type", "code"),
    [(400, "application/json", "bad_answer"), (200, "image/png", "bad_answer"), (503, "text/html", "no_network")],
)
async def test_a_service_that_fails_is_told_apart_from_one_that_is_away(status, media_type, code):
    """A refusal is no missing network, and neither speaks of pages."""
    async with site(answer("{}", status=status, media_type=media_type)) as there:
        error = await refused(there, location="Springfield")
    assert (error.type, error.code) == ("unavailable", code)
    assert "page" not in error.message


async def test_too_many_requests_say_when_to_come_back():
    """The service's own limit."""
    async with site(answer("{}", "Retry-After: 30", status=429)) as there:
        error = await refused(there, location="Springfield")
    assert (error.type, error.retry_after) == ("rate_limited", 30)


async def test_another_provider_can_take_its_place(server, namespace):
    """One method is all it needs; served over a real server."""

    class Sunny:
        async def report(self, location, *, days, imperial, language):
            now = Now("now", "clear sky", 25, None, None, None, None, None)
            return Report(
                Place(location, 0, 0), "UTC", Units("°C", "mm", "km/h"), now, (Day("today", "clear sky", 20, 30, 0, 0, 5),) * days
            )

    async with Worker([GetWeather(Sunny())], url=server, namespace=namespace), ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("get_weather", 10)
        result = await bus.call("get_weather", {"location": "Sunville", "days": 2})
        wrong = await bus.call("get_weather", {"location": "Sunville", "days": 99})
    assert result.output.startswith("Sunville, now (UTC)\nNow: clear sky, 25 °C\n")
    assert len(result.data["days"]) == 2
    assert wrong.error.type == "invalid_arguments"
