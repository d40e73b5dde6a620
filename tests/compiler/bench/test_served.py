import json
from dataclasses import replace

import pytest
from sample_serving import ASKS, REPORT, alone, sharing, together

from dlmc.bench.load import Ask, Call, InFlight, Poisson
from dlmc.bench.served import Load, Sharing, Side, Tail, compare
from dlmc_runtime.statistics import Statistics


class Scripted:
    """A server whose every round is the same."""

    def __init__(self, told=None):
        self.told, self.paces = told, []

    def alone(self):
        return alone()

    def together(self, pace):
        self.paces.append(pace)
        return together(), self.told


def test_percentiles():
    tail = Tail.of([float(value) for value in range(101)])
    assert tail is not None
    assert (tail.p50, tail.p90, tail.p99) == (50, 90, 99)
    assert Tail.of([]) is None


def test_a_side_adds_up_its_rounds():
    way = Side.of([together(), together()], ASKS)
    assert (way.requests, way.failed) == (6, {"OverloadError": 2})
    assert (way.seconds, way.tokens) == (4.0, 48)
    assert (way.tokens_per_second, way.requests_per_second) == (12.0, 1.0)
    assert (way.row_forwards, way.tokens_per_forward) == (16, 3.0)
    assert way.latency == Tail(1.5, 1.5, 1.5)
    assert way.first_block is not None
    assert way.first_block.p50 == 0.75
    assert way.waiting is not None
    assert way.waiting.p50 == pytest.approx(0.25)
    assert (way.asked, way.exact, way.prompt_tokens_cached) == (4, 2, 8)


def test_nothing_but_failures_is_no_division_by_zero():
    way = Side.of([[Call(1.0, 1.0, error="HTTP 500")]], [Ask("a", 0, "b")])
    assert (way.tokens_per_second, way.tokens_per_forward, way.latency) == (0, 0, None)
    assert (way.asked, way.exact) == (1, 0)


def test_what_a_scheduler_counts():
    counted = Statistics(
        forwards={"denoise": 3, "commit": 1},
        rows_fed=6,
        slots_fed=8,
        forward_seconds=3.0,
        busy_seconds=4.0,
    )
    found = Sharing.of(counted)
    assert (found.count, found.occupancy) == (4, 0.75)
    assert (found.own_share, found.own_seconds) == (0.25, 0.25)
    assert Sharing.of(Statistics()).own_share == 0


def test_rounds_of_sharing_add_up():
    both = Sharing.sum([sharing(), sharing()])
    assert both is not None
    assert both.forwards == {"denoise": 8, "prefill": 2}
    assert both.occupancy == sharing().occupancy
    assert both.since(sharing()) == sharing()
    assert Sharing.sum([sharing(), None]) is None


def test_the_rate_is_twice_what_one_at_a_time_serves():
    server = Scripted()
    found = compare(server, ASKS, Load(rounds=2, seed=5))
    (pace, other) = server.paces
    assert isinstance(pace, Poisson)
    assert pace.rate == other.rate == found.rate == 2 * 3 / 6
    assert pace.gap() != other.gap()


def test_a_rate_or_a_number_in_flight():
    server = Scripted()
    assert compare(server, ASKS, Load(rate=9.0)).rate == 9
    found = compare(server, ASKS, Load(concurrency=2))
    assert (found.rate, found.concurrency) == (None, 2)
    assert isinstance(server.paces[1], InFlight)


def test_the_two_ways_are_compared_round_by_round():
    said: list[str] = []
    found = compare(Scripted(sharing()), ASKS, Load(concurrency=2, rounds=2), said.append)
    assert found.ratios == (2.0, 2.0)
    assert found.faster.median == 2.0
    assert found.same == 2  # of each round one differs, and one failed
    assert found.sharing == Sharing.sum([sharing(), sharing()])
    assert said == [
        f"{way}, round {n} of 2" for n in (1, 2) for way in ("one at a time", "together")
    ]


def test_a_ratio_is_of_its_round():
    class Slower(Scripted):
        """Takes twice as long for everything from the second round on."""

        def together(self, pace):
            calls, told = super().together(pace)
            slow = len(self.paces)
            return [
                replace(call, sent=slow * call.sent, ended=slow * call.ended) for call in calls
            ], told

    assert compare(Slower(), ASKS, Load(concurrency=2, rounds=2)).ratios == (2.0, 1.0)


def test_a_report_is_json():
    data = json.loads(json.dumps(REPORT.as_dict()))
    assert data["bundle"] == "tiny"
    assert data["found"]["faster"]["median"] == 2.0
    assert data["found"]["sharing"]["occupancy"] == pytest.approx(0.6)
    assert data["found"]["alone"]["latency"]["p50"] == 2.0
    assert data["warnings"] == REPORT.warnings == []
