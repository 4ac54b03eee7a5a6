"""The formulas of the autoscaling benchmark, its command line, and what a pool of real workers does when it is scaled by them."""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscaling import __main__ as command
from benchmarks.autoscaling.hpa import SYNC_PERIOD, Autoscaler, Event, Rate, desired, least_after, most_after
from benchmarks.autoscaling.keda import Activation
from benchmarks.autoscaling.loads import SHAPES, arrivals
from benchmarks.autoscaling.model import ModelPlan, modelled
from benchmarks.autoscaling.policy import CONCURRENCY, Policy
from benchmarks.autoscaling.pool import Pool
from benchmarks.autoscaling.trial import Plan, place, scaled
from toolbus.bus.broker.transport.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent
CHART = yaml.safe_load((ROOT / "deploy/helm/toolbus/values.yaml").read_text())["workerDefaults"]
# The chart's names of the figures of a policy.
NAMES = {
    "minReplicas": "min_replicas",
    "maxReplicas": "max_replicas",
    "streamLength": "stream_length",
    "pollingInterval": "polling_interval",
    "cooldownPeriod": "cooldown_period",
    "scaleDownStabilization": "scale_down_stabilization",
    "scaleDownPercent": "scale_down_percent",
}


def test_the_chart_has_the_figures_that_were_measured() -> None:
    """Its defaults, those of the kustomize overlay and the table of the page are those of the benchmark's policy."""
    figures = {name: getattr(Policy(), ours) for name, ours in NAMES.items()}
    assert {name: value for name, value in CHART["autoscaling"].items() if name != "enabled"} == figures
    assert CHART["concurrency"] == CONCURRENCY
    scaled_object = next(yaml.safe_load_all((ROOT / "deploy/kustomize/overlays/production/scaling.yaml").read_text()))["spec"]
    down = scaled_object["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert (scaled_object["pollingInterval"], scaled_object["cooldownPeriod"]) == (figures["pollingInterval"], figures["cooldownPeriod"])
    assert (scaled_object["minReplicaCount"], scaled_object["maxReplicaCount"]) == (figures["minReplicas"], figures["maxReplicas"])
    assert down["stabilizationWindowSeconds"] == figures["scaleDownStabilization"]
    assert down["policies"] == [{"type": "Percent", "value": figures["scaleDownPercent"], "periodSeconds": 60}]
    assert {each["metadata"]["streamLength"] for each in scaled_object["triggers"]} == {str(figures["streamLength"])}
    page = (ROOT / "docs/explanation/autoscaling.md").read_text()
    assert [name for name, value in figures.items() if f"| `{name}` | {value} |" not in page] == []


@pytest.mark.parametrize(
    ("current", "metric", "wanted"),
    [
        (1, 70, 1),  # as it should be
        (1, 76, 1),  # within the tolerance
        (1, 78, 2),  # above it
        (10, 630, 10),  # at its lower end
        (10, 629, 9),
        (4, 0, 0),
        (2, 700, 10),
    ],
)
def test_a_metric_asks_for_replicas_beyond_its_tolerance(current: int, metric: float, wanted: int) -> None:
    """The metric over the target, rounded up, unless the ratio is within a tenth of one."""
    assert desired(current, metric, 70) == wanted


def test_rates_bound_a_change_by_what_happened_in_their_period() -> None:
    """Upwards four or twice as many in 15 seconds, whichever is more; downwards a share of those at the period's beginning."""
    assert most_after(2, [], 100.0) == 6
    assert most_after(10, [], 100.0) == 20
    assert most_after(6, [Event(95.0, 4)], 100.0) == 6
    assert most_after(6, [Event(80.0, 4)], 100.0) == 12
    half = [Rate(50, 60.0, percent=True)]
    assert least_after(10, [], 100.0, half) == 5
    assert least_after(5, [Event(60.0, -5)], 100.0, half) == 5
    assert least_after(5, [Event(30.0, -5)], 100.0, half) == 2


def decided(policy: Policy, metrics: list[float], start: int = 1) -> list[int]:
    """Return the replicas after each period of the autoscaler."""
    scaler, found = Autoscaler(policy), [start]
    for turn, metric in enumerate(metrics):
        found.append(scaler.decide(turn * SYNC_PERIOD, found[-1], metric))
    return found


def test_fewer_replicas_wait_for_the_window_and_go_by_halves() -> None:
    """More come at once; fewer only when nothing in the window asked for more, and half of them a minute."""
    policy = Policy(max_replicas=16, scale_down_stabilization=60, scale_down_percent=50)
    found = decided(policy, [560.0] * 2 + [70.0] * 12)
    assert found[:4] == [1, 5, 8, 8]
    assert found[4:] == [8, 8, 4, 4, 4, 4, 2, 2, 2, 2, 1]


def test_a_dip_within_the_window_changes_nothing() -> None:
    """A load that comes back finds its replicas."""
    assert set(decided(Policy(), [350.0, 350.0, 10.0, 10.0, 350.0] * 6)[2:]) == {5}


@given(st.lists(st.floats(0, 5000), max_size=60), st.integers(0, 3), st.integers(3, 12))
def test_replicas_keep_to_their_bounds(metrics: list[float], least: int, most: int) -> None:
    """No metric asks for more or fewer than allowed; the last one is left to KEDA."""
    policy = Policy(min_replicas=least, max_replicas=most)
    found = decided(policy, metrics, max(1, least))
    assert all(max(1, least) <= each <= most for each in found)
    assert all(after <= max(before + 4, 2 * before) for before, after in pairwise(found))
    assert Autoscaler(policy).decide(0.0, 0, 1e9) == 0


def test_the_first_replica_comes_with_a_request_and_the_last_one_goes_after_the_cooldown() -> None:
    """From zero at the first look that finds a request, to zero when no look has found one for the whole period."""
    keda = Activation(Policy(min_replicas=0, cooldown_period=120))
    assert keda.look(0.0, 0, 0) == 0
    assert keda.look(5.0, 0, 1) == 1
    assert keda.look(10.0, 4, 80) == 4
    assert keda.look(130.0, 1, 0) == 1
    assert keda.look(131.0, 1, 0) == 0
    assert Activation(Policy(min_replicas=2)).look(500.0, 2, 0) == 2
    assert Activation(Policy(min_replicas=2)).look(500.0, 1, 0) == 2


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_makes_the_same_load_each_time(name: str) -> None:
    """Calls come in order, within the shape's length, about as many as its shares say, and at other moments with another seed."""
    shape = SHAPES[name]
    first, again, other = (list(arrivals(shape, 100.0, 20.0, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert first == sorted(first)
    assert first[0] >= 0
    assert first[-1] * 20.0 < shape.seconds
    share = sum(shape.share(each) for each in range(int(shape.seconds))) / shape.seconds
    assert 0.8 < len(first) / (share * 100.0 * shape.seconds / 20.0) < 1.2
    assert all(0 < shape.share(each) <= 1 for each in range(int(shape.seconds)))


def test_a_policy_keeps_its_use_with_other_slots() -> None:
    """Seven requests for a worker of ten slots are what seventy are for one of a hundred."""
    assert Policy().for_slots(10).stream_length == 7
    assert Policy().for_slots(1).stream_length == 1
    assert Plan(slots=10, seconds=0.25, workers=6).rate(Policy()) == 6 * 7 / 0.25


def test_the_model_answers_every_call_and_counts_what_workers_cost() -> None:
    """A pool that is large enough makes nothing wait; one that starts from none makes the first call wait for the look and the start."""
    plan = ModelPlan(slots=10, workers=2)
    wide = modelled("spike", plan, Policy(min_replicas=10, stream_length=7))
    assert wide.waited_p99 == wide.backlog == wide.changes == 0
    assert wide.cost == pytest.approx(10 * wide.fixed / plan.workers)
    empty = modelled("spike", plan, Policy(min_replicas=0, stream_length=7))
    assert empty.calls == wide.calls
    assert empty.started >= 2
    assert empty.waited_p99 > 0
    assert empty.cost < wide.cost


@pytest.mark.usefixtures("slow")
def test_a_window_keeps_the_workers_of_bursts() -> None:
    """Without one, each burst starts them again; this is why the chart has a minute."""
    none, usual = (modelled("bursts", ModelPlan(), Policy(scale_down_stabilization=each)) for each in (0, 60))
    assert none.started > 2 * usual.started
    assert none.waited_p50 > usual.waited_p50 == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["peak"], "there is no part 'peak'; there are model, zero, steps, spike, bursts, day, half"),
        (["--vary", "speed=1"], "'speed' is no figure of a policy; there are min_replicas"),
        (["--vary", "cooldown_period=soon"], "'soon' are no whole numbers with commas between them, such as cooldown_period=0,60,300"),
        (["--vary", "max_replicas=0"], "max_replicas=0 asks for a pool that can't be"),
        (["--pace", "0"], "--pace goes up to 100"),
    ],
)
def test_wrong_words_are_told_in_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line says what there is instead; nothing is started."""
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_figure_is_varied() -> None:
    """Each value makes a policy, the others of which are the usual ones."""
    assert command.varied("cooldown_period=0,60") == [Policy(cooldown_period=0), Policy(cooldown_period=60)]
    with pytest.raises(argparse.ArgumentTypeError):
        command.varied("cooldown_period")


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(600)
@pytest.mark.anyio
async def test_no_call_is_lost_from_zero_to_several_workers_and_to_half_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real workers start for a spike that finds none, drain while calls that may run once only go on, and end in order."""
    plan, policy = Plan(workers=4, pace=20.0), Policy(min_replicas=0, scale_down_stabilization=0)
    with EmbeddedServer() as server:
        async with place(server.url, Pool(server.url, plan.slots, tmp_path)) as at:
            found = await scaled(at, "spike", plan, policy)
    with capsys.disabled():
        print(f"\nautoscaling: {found.calls} calls, p99 {found.p99_ms:.0f} ms, {found.workers} workers, {found.changes} changes")  # noqa: T201 - told, and not asserted: it depends on the machine
    assert found.calls > 500
    assert (found.failed, found.killed) == (0, 0)
    assert found.workers >= 2
    # Up at least once from none, and at least once down.
    assert found.changes >= 3
