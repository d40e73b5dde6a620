import json
from dataclasses import replace

import pytest
from sample_report import CONTENDER, GENERATIONS, LONG, REPORT, SMALL, generation, request

from dlmc.bench.isolated import Use
from dlmc.bench.machine import Noise
from dlmc.bench.report import Speed, Workload, phases
from dlmc.bench.roofline import Floor
from dlmc.bench.spread import Spread
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule

SPEED = Speed.of(GENERATIONS)


def test_speed_is_of_all_generations():
    assert (SPEED.tokens, SPEED.tokens_per_forward) == (6, 1.5)
    assert SPEED.forwards == {"prefill": 1, "denoise": 2, "commit": 1}
    assert SPEED.seconds.median == 1.5
    assert SPEED.useful_per_second.median == 4.0
    assert SPEED.computed_per_second.median == pytest.approx(40 / 1.5)
    assert SPEED.first_block.median == 0.75
    assert SPEED.own_share.minimum == pytest.approx(1 - 0.875)


def test_phases_join_by_kind_and_profile():
    alone = [(Use("denoise", SMALL), [0.2, 0.4]), (Use("prefill", SMALL), [1.0])]
    found = phases(alone, [generation(1.0)], [Floor(0.1, "memory"), None])
    denoise, unused, prefill, commit = found
    assert denoise.in_loop == Spread.of([0.125, 0.25])
    assert denoise.ratio == pytest.approx(3.0)
    assert (unused.kind, unused.in_loop, unused.ratio) == ("prefill", None, None)
    assert (prefill.profile, prefill.alone, prefill.ratio) == (LONG, None, None)
    assert commit.kind == "commit"


@pytest.mark.parametrize(
    ("sampler", "steps", "pace"),
    [
        (SamplerConfig(), 32, "low_confidence, 32 steps a block of 32, temperature 0"),
        (
            SamplerConfig(steps=16, block_length=64, temperature=0.5),
            16,
            "low_confidence, 16 steps a block of 64, temperature 0.5",
        ),
        (
            SamplerConfig(threshold=1.0),
            None,
            "low_confidence, blocks of 32, threshold 1, temperature 0",
        ),
        (
            SamplerConfig(name="low_confidence_dynamic", steps=4, threshold=0.9, top_k=5),
            4,
            "low_confidence_dynamic, 4 steps a block of 32, threshold 0.9, top k 5, temperature 0",
        ),
    ],
)
def test_the_pace_stands_in_words(sampler, steps, pace):
    workload = Workload.of(request(sampler), block_length=32, repeats=3)
    assert workload.steps == steps
    assert workload.pace == pace


def test_a_workload_says_whether_answers_may_end():
    assert Workload.of(request(SamplerConfig()), 8, 1).ignore_eos
    assert not Workload.of(request(SamplerConfig(), StopRule(frozenset({7}))), 8, 1).ignore_eos


def test_json_holds_what_is_derived():
    data = json.loads(json.dumps(REPORT.as_dict()))
    contender, baseline = data["contenders"]
    assert contender["phases"][0]["ratio"] == pytest.approx(2.0)
    assert contender["phases"][0]["profile"] == SMALL.model_dump()
    assert contender["scores"][0]["accuracy"] == 0.75
    assert baseline["phases"][0]["profile"] == LONG.model_dump()
    assert data["workload"]["steps"] == 8


def test_wide_times_and_a_busy_machine_are_warned_of():
    assert len(REPORT.warnings) == 1
    assert "onnxruntime-cpu took 1.1 to 1.9 s" in REPORT.warnings[0]
    quiet = replace(CONTENDER, speed=Speed.of([generation(1.0)]))
    assert replace(REPORT, contenders=(quiet,)).warnings == []
    busy = replace(REPORT, contenders=(quiet,), noise=Noise(0.0, 0.4, 2))
    assert "other programs took 40%" in busy.warnings[0]
