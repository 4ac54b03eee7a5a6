"""The scale on paper: its page says what its costs say, the simulation adds up, and a few real namespaces take what it predicts."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.scale import check, measure
from benchmarks.scale.__main__ import main
from benchmarks.scale.costs import Costs, load
from benchmarks.scale.model import Demand, load_of
from benchmarks.scale.report import Study, study
from benchmarks.scale.simulate import Server, place
from benchmarks.servers import redis_server
from website.stage import prepared

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "scale.md"


@functools.cache
def costs() -> Costs:
    """The costs that the page shows."""
    return load()


@functools.cache
def paper() -> Study:
    """The study that the page shows."""
    return study(costs(), Demand(), Server())


@pytest.mark.usefixtures("slow")
def test_every_figure_of_the_page_comes_from_the_measured_costs() -> None:
    """The tables of the site's page are those that the program computes from the file, with the same seed."""
    page = prepared(PAGE.read_text("utf-8"), PAGE, PAGE, "main")
    tables = paper().tables()
    assert [name for name in ("calls", "single", "limits") if tables[name] not in page] == []
    assert "<!-- scale" not in page


@pytest.mark.usefixtures("slow")
def test_every_limit_that_the_deployment_meets_has_an_advice() -> None:
    """A row of the page says what to do about everything that is used up below or near the deployment's own size."""
    advice = PAGE.read_text().partition("| Limit | What it looks like")[2].partition("\n\n")[0]
    met = [limit.what for limit in paper().limits if limit.factor < 2]
    assert len(met) >= 3
    assert [what for what in met if what not in advice] == []


def test_load_adds_up() -> None:
    """The cost of calls is the same in any number of namespaces, and what is a product falls with it."""
    whole, tenth = load_of(costs(), Demand()), load_of(costs(), Demand().share(0.1))
    for part in ("calls", "idle workers", "idle agents", "reaps"):
        assert 10 * tenth.parts[part] == pytest.approx(whole.parts[part])
    for part in ("registry read again", "registry changes"):
        assert 100 * tenth.parts[part] == pytest.approx(whole.parts[part])
    assert 10 * tenth.connections == pytest.approx(whole.connections)
    assert 10 * tenth.memory == pytest.approx(whole.memory)


@pytest.mark.usefixtures("slow")
def test_each_limit_is_where_its_share_is_used_up() -> None:
    """A namespace of the size that a limit names uses exactly what there is."""
    server = Server()
    for limit in paper().limits:
        found = load_of(costs(), limit.demand)
        kind, _, part = limit.what.partition(": ")
        used = found.parts[part] / 1e6 / server.cores if part else server.uses(found)[kind]
        assert used == pytest.approx(1, rel=0.01), limit.what


@pytest.mark.usefixtures("slow")
def test_masters_are_enough_and_no_more_than_needed() -> None:
    """Equal namespaces that are placed by hand take what their sum takes; by name more; and the same seed gives the same."""
    demand, server = Demand(namespaces=600), Server()
    placed = place(costs(), demand, server, skew=0.0, seed=7)
    assert placed.fits
    assert placed.cores / server.cores <= placed.by_hand <= 1.2 * placed.cores / server.cores + 1
    assert placed.by_hand <= placed.masters <= placed.most_masters
    assert place(costs(), demand, server, skew=0.0, seed=7) == placed


def test_a_namespace_that_fits_no_master_is_told() -> None:
    """No number of masters is given for it."""
    placed = place(costs(), Demand(namespaces=1), Server(), skew=0.0, seed=1)
    assert (placed.fits, placed.masters, placed.by_hand) == (False, 0, 0)
    assert placed.fullest_namespace > 1


def test_costs_between_measured_ones_lie_between_them() -> None:
    """And beyond them, the nearest counts."""
    first, *_, last = costs().calls
    for few, many in zip(costs().calls, costs().calls[1:], strict=False):
        between = costs().call((few.in_flight + many.in_flight) / 2)
        assert between.server_us == pytest.approx((few.server_us + many.server_us) / 2)
    assert (costs().call(0.1), costs().call(1e9)) == (first, last)


def test_the_program_writes_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tables for people and JSON for programs, of the deployment that is asked for."""
    file = tmp_path / "scale.json"
    assert main(["--calls", "5000", "--tools", "200", "--workers", "20", "--agents", "10", "--json", str(file)]) == 0
    found = msgspec.convert(json.loads(file.read_text()), Study)
    assert found.demand == Demand(calls=5000, tools=200, workers=20, agents=10)
    assert found.costs == costs()
    assert found.placed[0].fits
    assert all(text in capsys.readouterr().out for text in ("what is used up",))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--costs", "nowhere.json"], "nowhere.json can't be read"),
        (["--costs", str(PAGE)], "holds no measured costs"),
    ],
)
def test_a_mistake_gives_one_clear_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file that is not there, and one of another kind."""
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert told in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize("words", [["--calls", "many"], ["--calls", "0"], ["--skew", "9"], ["--workers", "inf"], ["everything"]])
def test_a_wrong_number_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option's value."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(300)
def test_a_few_real_namespaces_take_what_is_predicted() -> None:
    """Counts are close; CPU time, compared with that of one namespace, and memory are of the same size."""
    found = check.compare(costs(), calls=3_000, in_flight=64, cases=((1, 1), (2, 1), (4, 2)))
    most = {"server, µs per call": 3.0, "memory, KB": 2.0, "commands per call": 1.33, "bytes per call": 1.33, "connections": 1.0}
    assert {each.what for each in found} == most.keys()
    # Buffers of the server's own come and go meanwhile.
    slack = {"memory, KB": 64}
    wrong = [
        each
        for each in found
        if not 1 / most[each.what] <= each.predicted / each.measured <= most[each.what]
        and abs(each.predicted - each.measured) > slack.get(each.what, 0)
    ]
    assert wrong == [], check.shown(wrong)


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(300)
def test_the_costs_can_be_measured_anew() -> None:
    """Steps find the costs that they are for, and sizes are those that the page shows."""
    size = measure.QUICK._replace(calls=500, services=200, reaps=200)
    found: dict[str, float] = {}
    with redis_server() as server:
        for step in ("reaps", "the registry", "queued requests"):
            server.reset()
            found |= measure.STEPS[step](server, size)
    before = msgspec.to_builtins(costs())
    assert found.keys() <= before.keys()
    for name in ("snapshot_bytes_per_tool", "queued_bytes", "tool_bytes"):
        assert before[name] / 2 <= found[name] <= 2 * before[name], name
    assert all(found[name] > 0 for name in ("reap_us_per_worker", "register_us"))
