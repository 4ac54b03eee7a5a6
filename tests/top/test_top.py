"""``toolbus see top`` by its keys, without a terminal: textual's pilot presses them, and the screen is read."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from tests.servers import eventually
from toolbus import Settings
from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.values.results import BrokerUnavailable
from toolbus.bus.watch.views import DeadLetterView, InstanceView, ServiceView, Snapshot, ToolView
from toolbus.operations.tables import TABLES, clock
from toolbus.operations.top import Details, Grid, Top

pytestmark = pytest.mark.anyio

EVIL = "\x1b]52;c;ZXZpbA==\x07\u202eevil\x1b[2J [bold]x[/bold] \u200b"


@pytest.fixture
def anyio_backend() -> str:
    """Textual runs on asyncio."""
    return "asyncio"


class Staged:
    """A watch whose snapshots are given."""

    def __init__(self, *snapshots: Snapshot | Exception) -> None:
        self.given = list(snapshots)
        self.taken = 0
        self.closed = False

    async def sample(self) -> Snapshot:
        """Return the next snapshot; the last one again and again."""
        self.taken += 1
        found = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def aclose(self) -> None:
        """Take note."""
        self.closed = True


def state(services: int = 3, **changes: Any) -> Snapshot:
    """Return a snapshot."""
    return Snapshot(
        at=1.0,
        window=1.0,
        services=tuple(
            ServiceView(
                id=f"service{number:03}",
                live=number != 1,
                state="down" if number == 1 else "live",
                paused=number == 2,
                workers=number,
                queued=(7 * number) % 10,
                calls_per_s=number,
            )
            for number in range(services)
        ),
        instances=(InstanceView(id="host-1-abc", answered=True, host="host", pid=1, slots=10, running=3), InstanceView(id="host-2-def")),
        tools=(ToolView(service="service000", name="echo", description="Say it."), ToolView(service="service000", name="shout")),
        recent=(
            RecentCall("c1", "echo", "service000", attempt=2, outcome="succeeded", taken=2.0, ended=2.5, entry="3-0"),
            RecentCall("c2", "shout", "service000", outcome="failed", error="tool_error", message="no luck", entry="2-0"),
            RecentCall("c1", "echo", "service000", outcome="lost", by="host-1-abc", entry="1-0"),
        ),
        dead=(DeadLetterView(id="1-0", queue="service000", at=1.0, tool="echo", reason="failed", error="no luck"),),
        **changes,
    )


def app_of(watch: Staged) -> Top:
    """Return the program with given snapshots."""
    return Top(Settings(), every=0.1, watch=watch)  # type: ignore[arg-type]


def screen(app: Top) -> str:
    """Return the text on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def shown(app: Top, pilot: Pilot[None], *texts: str) -> str:
    """Wait until all texts are on the screen, and return it."""

    async def all_there() -> str:
        await pilot.pause()
        found = screen(app)
        return found if all(text in found for text in texts) else ""

    return await eventually(all_there, timeout=20.0)


async def gone(app: Top, pilot: Pilot[None], text: str) -> None:
    """Wait until a text is not on the screen any more."""

    async def away() -> bool:
        await pilot.pause()
        return text not in screen(app)

    await eventually(away, timeout=20.0)


@pytest.mark.usefixtures("slow")
async def test_every_table_has_its_key() -> None:
    """The digits choose tables, and so does Tab; each shows its rows."""
    app = app_of(Staged(state()))
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "service000", "paused", "down", "2/3 services")
        for key, text in (
            ("2", "silent"),
            ("3", "shout"),
            ("4", "taken over by host-1-abc"),
            ("5", "no luck"),
            ("6", "nothing waits"),
            ("7", "no open sessions"),
            ("8", "no running calls"),
        ):
            await pilot.press(key)
            await shown(app, pilot, text)
        await pilot.press("tab")
        await shown(app, pilot, "service000")
        await pilot.press("shift+tab")
        await shown(app, pilot, "no running calls")


@pytest.mark.usefixtures("slow")
async def test_rows_are_sorted_by_any_column_either_way() -> None:
    """By the keys, and by a click on a title."""
    app = app_of(Staged(state(services=9)))
    async with app.run_test(size=(140, 30)) as pilot:
        await shown(app, pilot, "service008", "SERVICE ▲")
        grid = app.query_one(Grid)
        assert [view.id for view in grid.rows] == sorted(view.id for view in grid.rows)
        await pilot.press("r")
        await shown(app, pilot, "SERVICE ▼")
        assert grid.rows[0].id == "service008"
        for _ in range(3):
            await pilot.press("s")
        await shown(app, pilot, "QUEUED ▼")
        assert [view.queued for view in grid.rows] == sorted((view.queued for view in grid.rows), reverse=True)
        header = screen(app).splitlines()[3]
        await pilot.click(Grid, offset=(header.index("WORKERS") + 1, 0))
        await shown(app, pilot, "WORKERS ▼")
        await pilot.click(Grid, offset=(header.index("WORKERS") + 1, 0))
        await shown(app, pilot, "WORKERS ▲")


@pytest.mark.usefixtures("slow")
async def test_rows_are_filtered_while_a_text_is_typed() -> None:
    """Enter keeps the filter, Escape ends it; keys are text as long as it is typed, and replace the last one."""
    app = app_of(Staged(state(services=9)))
    async with app.run_test(size=(140, 30)) as pilot:
        await shown(app, pilot, "service008")
        await pilot.press("slash", *"SERVICE007")
        await gone(app, pilot, "service008")
        assert "service007" in screen(app)
        await pilot.press("enter")
        assert app.focused is app.query_one(Grid)
        await shown(app, pilot, "only rows with 'SERVICE007'")
        await pilot.press("slash", "q", "1")
        assert app.query_one(Input).value == "q1"
        await pilot.press("escape")
        await shown(app, pilot, "service008")


@pytest.mark.usefixtures("slow")
async def test_the_cursor_stays_on_its_row() -> None:
    """Rows that come and go move it along, and a long table scrolls with it."""
    watch = Staged(state(services=200))
    app = app_of(watch)
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "service000")
        await pilot.press("end")
        await shown(app, pilot, "service199", "SERVICE ▲")
        await pilot.press("home", "down", "down")
        grid = app.query_one(Grid)
        assert grid.chosen.id == "service002"
        await pilot.press("r")
        assert grid.chosen.id == "service002"
        watch.given = [state(services=3)]
        await gone(app, pilot, "service199")
        assert grid.chosen.id == "service002"
        watch.given = [state(services=0)]
        await shown(app, pilot, "no services; start a worker")
        await pilot.press("enter", "up", "down", "pagedown")
        assert grid.chosen is None


@pytest.mark.usefixtures("slow")
async def test_details_of_a_call_have_all_of_its_attempts() -> None:
    """Enter opens them, Escape closes them, and the table's keys do nothing meanwhile."""
    app = app_of(Staged(state()))
    async with app.run_test(size=(100, 60)) as pilot:
        await shown(app, pilot, "service000")
        await pilot.press("4")
        await shown(app, pilot, "shout")
        grid = app.query_one(Grid)
        grid.action_edge(-1)
        while grid.chosen.id != "c1":
            grid.action_move(1)
        await pilot.press("enter")
        found = await shown(app, pilot, '"outcome": "lost"', '"outcome": "succeeded"')
        assert found.index('"lost"') < found.index('"succeeded"')
        await pilot.press("tab")
        assert isinstance(app.screen, Details)
        await pilot.press("escape")
        await gone(app, pilot, '"outcome"')


@pytest.mark.usefixtures("slow")
async def test_it_can_be_held() -> None:
    """The rows stay as they are until it goes on."""
    watch = Staged(state())
    app = app_of(watch)
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "service002")
        await pilot.press("p")
        await shown(app, pilot, "[paused]")
        watch.given = [state(services=9)]
        taken = watch.taken
        await eventually(lambda: watch.taken > taken + 2)
        assert "service008" not in screen(app)
        await pilot.press("p")
        await shown(app, pilot, "service008")


@pytest.mark.usefixtures("slow")
async def test_trouble_is_told_and_passes() -> None:
    """The last rows stay while the server is away; silent workers and unreadable parts are named."""
    watch = Staged(BrokerUnavailable("can't reach the server"))
    app = app_of(watch)
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "can't reach the server")
        assert "no services" not in screen(app)
        watch.given = [state(silent=("w1",), problems=("dead letters: no permission",))]
        await shown(app, pilot, "service002", "1 workers do not answer: w1", "can't be read: dead letters: no permission")
        watch.given = [BrokerUnavailable("the connection was lost")]
        await shown(app, pilot, "the connection was lost", "service002")
        watch.given = [state()]
        await gone(app, pilot, "the connection was lost")


@pytest.mark.usefixtures("slow")
async def test_it_follows_the_size_of_the_terminal() -> None:
    """Also one of no use."""
    app = app_of(Staged(state(services=50)))
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "service010", "CALLS/S")
        for size in ((40, 10), (5, 3), (1, 1), (300, 90)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await shown(app, pilot, "service049", "TOOLS")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
async def test_it_ends_by_q_and_by_ctrl_c(key: str, code: int) -> None:
    """The connection is closed."""
    watch = Staged(state())
    app = app_of(watch)
    async with app.run_test() as pilot:
        await shown(app, pilot, "service000")
        await pilot.press(key)
        await eventually(lambda: not app.is_running or app._exit)
    assert app.return_code == code
    assert watch.closed


@pytest.mark.usefixtures("slow")
async def test_no_text_commands_the_terminal() -> None:
    """Controls and hidden characters of names and errors are written out, and markup is text."""
    evil = Snapshot(
        at=1.0,
        services=(ServiceView(id=EVIL, owner=EVIL),),
        instances=(InstanceView(id=EVIL, answered=True, host=EVIL, version=EVIL, services=(EVIL,)),),
        tools=(ToolView(service=EVIL, name=EVIL, description=EVIL),),
        recent=(RecentCall("c1", EVIL, EVIL, EVIL, instance=EVIL, outcome="failed", error=EVIL, message=EVIL),),
        dead=(DeadLetterView(id="1-0", queue=EVIL, at=1e300, tool=EVIL, reason=EVIL, error=EVIL),),
        silent=(EVIL,),
        problems=(EVIL,),
    )
    app = app_of(Staged(evil))
    async with app.run_test(size=(200, 40)) as pilot:
        await shown(app, pilot, "evil")
        for number in range(1, len(TABLES) + 1):
            await pilot.press(str(number))
            await pilot.pause()
            app.query_one(Grid).action_edge(-1)
            await pilot.press("enter")
            await pilot.pause()
            found = screen(app)
            assert not set("\x1b\x07\u202e\u200b") & set(found)
            if isinstance(app.screen, Details):
                assert "[bold]x[/bold]" in found
                await pilot.press("escape")
                await pilot.pause()


@pytest.mark.usefixtures("slow")
async def test_a_large_registry_is_drawn_row_by_row() -> None:
    """Only rows in view are formatted, however many there are."""
    app = app_of(Staged(state(services=5_000)))
    async with app.run_test(size=(140, 20)) as pilot:
        await shown(app, pilot, "service000")
        grid = app.query_one(Grid)
        formatted = 0
        cells = grid.table.cells

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(TABLES["services"], name)

            def cells(self, view: Any) -> list[str]:
                nonlocal formatted
                formatted += 1
                return cells(view)

        grid.table = Counting()  # type: ignore[assignment]
        grid.action_move(1)
        await asyncio.sleep(0)
        await pilot.pause()
        assert 0 < formatted < 1_000


def test_a_time_of_another_day_has_its_date() -> None:
    """A history goes back for months; today's times are those of the day alone."""
    now = time.time()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", clock(now))
    assert clock(now - 3 * 86_400) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 3 * 86_400))
    assert [clock(at) for at in (0.0, 1e300, float("nan"))] == ["-"] * 3
