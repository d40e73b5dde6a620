import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the bundle of these tests is exported")

from sample_report import REPORT

from dlmc.bench import run
from dlmc_runtime.samplers.config import SamplerConfig


@pytest.fixture
def benched(monkeypatch):
    """Put a report in the place of a benchmark; the list holds what was asked for."""
    calls = []

    def bench_bundle(root, options, advance):
        advance("measuring")
        calls.append((root, options))
        return REPORT

    monkeypatch.setattr(run, "bench_bundle", bench_bundle)
    return calls


def test_tables(dlmc, benched):
    outcome = dlmc("bench", "bundle")
    assert outcome.status == 0
    assert "tiny on a processor, 2 cores" in outcome.out
    assert "3 prompt tokens, at most 64 new ones, stop tokens ignored; 3 answers" in outcome.out
    assert outcome.out.count("low_confidence, 8 steps a block of 8, temperature 0:\n") == 2
    lines = [line.split("  ") for line in outcome.out.splitlines()]
    rows = {tuple(cell.strip() for cell in line if cell) for line in lines}
    made = "1 prefill + 2 denoise + 1 commit"
    assert (
        *("onnxruntime-cpu", "4 (3.2 to 5.6)", "26.7", made),
        *("1.50", "750 (550 to 950)", "41.7%", "2.50x"),
    ) in rows
    shape = "1x8 over 32, 8 rows"
    loop = "188 (125 to 250)"
    assert (
        *("onnxruntime-cpu", "denoise", shape, loop, "200 (200 to 200)", "200"),
        *("100 (memory)", "2.0x"),
    ) in rows
    memory = ("4 MB", "5 MB", "6 MB", "1.50x", "4.5 MB", "0.25")
    assert ("onnxruntime-cpu", "float32", "none", *memory) in rows
    assert ("onnxruntime-cpu", "sorting", "3 of 4", "75.0%", "2.00", "50.0") in rows
    assert "floor: 100 GFLOP/s and 20.0 GB/s (as measured)" in outcome.out


def test_warnings_stand_apart(dlmc, benched):
    outcome = dlmc("bench", "bundle")
    assert "warning" not in outcome.out
    assert outcome.err == (
        "dlmc: warning: the answers of onnxruntime-cpu took 1.1 to 1.9 s (p10 to p90):"
        " differences of 53% mean nothing\n"
    )


def test_json(dlmc, benched):
    outcome = dlmc("bench", "bundle", "--json")
    assert outcome.json == json.loads(json.dumps(REPORT.as_dict()))


def test_options_reach_the_benchmark(dlmc, benched):
    line = ("--target", "a", "--target", "b", "--compare", "torch", "--prompt-tokens", "9")
    more = ("--max-new-tokens", "7", "--seed", "3", "--repeats", "2", "--tasks", "t.jsonl")
    pace = ("--steps", "4", "--temperature", "0.5", "--cache", "dual")
    dlmc("bench", "bundle", *line, *more, "--ignore-eos", *pace)
    ((root, options),) = benched
    assert root == Path("bundle")
    assert (options.targets, options.torch, options.prompt_tokens) == (("a", "b"), True, 9)
    assert (options.max_new_tokens, options.seed, options.repeats) == (7, 3, 2)
    assert (options.tasks, options.ignore_eos, options.prompt) == (Path("t.jsonl"), True, None)
    chosen = options.sampler(SamplerConfig(threshold=0.9))
    assert chosen == SamplerConfig(steps=4, temperature=0.5, cache="dual")


def test_a_picture(dlmc, benched, tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the validate extra")
    path = tmp_path / "picture.svg"
    assert dlmc("bench", "bundle", "--plot", str(path)).status == 0
    assert "</svg>" in path.read_text()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("--plot", "picture.jpg"), "names no picture"),
        (("--plot", "none/picture.svg"), "there is no folder none"),
        (("--compare", "abacus"), "--compare is 'abacus': it can be torch"),
        (("--prompt", "a", "--prompt-tokens", "3"), "exclude each other"),
        (("--prompt-tokens", "0"), "must be at least 1"),
        (("--repeats", "0"), "--repeats"),
        (("--steps", "0"), "steps is 0"),
        (("--cache", "abacus"), "cache is 'abacus'"),
        (("--sampler", "abacus"), "no sampler is called 'abacus'"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(dlmc, benched, line, words):
    outcome = dlmc("bench", "bundle", *line)
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.out == ""
    assert not benched


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        (("--target", "abacus"), 2, "no target is called 'abacus'"),
        (("--tasks", "none.jsonl"), 2, "none.jsonl cannot be read"),
        ((), 1, "holds no engine that runs here (built: none)"),
    ],
)
def test_a_bundle_without_engines(dlmc, bundle, line, status, words):
    outcome = dlmc("bench", str(bundle), *line)
    assert (outcome.status, outcome.out) == (status, "")
    assert words in outcome.err
