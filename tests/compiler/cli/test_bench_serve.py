import json
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the bundle of these tests is exported")

from sample_serving import ASKS, REPORT, together

from dlmc.bench import remote, serving
from dlmc.bench.served import Load, Side
from dlmc.cli.bench_serve import Given, readable
from dlmc_runtime.errors import UsageError
from dlmc_runtime.samplers.config import SamplerConfig

CALM = replace(
    REPORT, found=replace(REPORT.found, together=replace(REPORT.found.together, failed={}))
)


@pytest.fixture
def benched(monkeypatch):
    """Put a report in the place of a load; the list holds what was asked for."""
    calls = []

    def bench(root, where, options, advance):
        advance("measuring")
        calls.append((root, where, options))
        return CALM

    monkeypatch.setattr(serving, "bench_serving", bench)
    monkeypatch.setattr(remote, "bench_server", bench)
    return calls


def test_a_load_on_every_engine(dlmc, benched, bundle, engine):
    outcome = dlmc("bench", str(bundle), "--serve")
    assert (outcome.status, outcome.err) == (0, "")
    ((root, where, options),) = benched
    assert (root, where) == (bundle, "onnxruntime-cpu")
    assert (options.requests, options.load) == (32, Load(None, None, 1, 0))
    assert (options.lengths, options.tasks, options.max_new_tokens) == (None, None, None)
    assert "together 2.00x as many tokens a second" in outcome.out


def test_options_reach_the_load(dlmc, benched, bundle):
    line = ("--requests", "9", "--concurrency", "3", "--repeats", "2", "--seed", "4")
    more = ("--prompt-lengths", "16-32", "--max-new-tokens", "7", "--steps", "4")
    where = ("--url", "http://127.0.0.1:8000", "--ignore-eos")
    assert dlmc("bench", str(bundle), "--serve", *line, *more, *where).status == 0
    ((_, url, options),) = benched
    assert url == "http://127.0.0.1:8000"
    assert (options.requests, options.load) == (9, Load(None, 3, 2, 4))
    assert (options.lengths, options.max_new_tokens) == ((16, 32), 7)
    assert (options.seed, options.ignore_eos) == (4, True)
    assert options.given["steps"] == 4
    assert options.sampler(SamplerConfig(threshold=0.9)) == SamplerConfig(steps=4)


def test_json(dlmc, benched, bundle, engine):
    outcome = dlmc("bench", str(bundle), "--serve", "--rate", "2.5", "--json")
    assert outcome.json == {"contenders": [json.loads(json.dumps(CALM.as_dict()))]}
    assert benched[0][2].load.rate == 2.5


def test_requests_that_failed_are_a_failure_after_the_table(dlmc, monkeypatch, bundle, engine):
    failing = replace(CALM, found=replace(CALM.found, together=Side.of([together()], ASKS)))
    monkeypatch.setattr(serving, "bench_serving", lambda *_: failing)
    outcome = dlmc("bench", str(bundle), "--serve")
    assert outcome.status == 1
    assert "one at a time" in outcome.out
    assert "1 of 3 requests to onnxruntime-cpu failed (1 OverloadError)" in outcome.err


def test_what_is_shown():
    lines = readable(REPORT).splitlines()
    assert lines[0] == "tiny on onnxruntime-cpu, a processor, 2 cores"
    assert lines[1] == (
        "3 requests, 1 a second on average; at most 64 new tokens, low_confidence, seed 5;"
        " p50 / p90 / p99"
    )
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[4:6]]
    assert rows == [
        ["one at a time", "6", "0.5", "3.00", "2 / 2 / 2", "1 / 1 / 1", "0 / 0 / 0", "2 of 2"],
        [
            *("together", "12", "1", "3.00", "1.5 / 1.5 / 1.5", "0.75 / 0.75 / 0.75"),
            *("0.25 / 0.25 / 0.25", "1 of 2"),
        ],
    ]
    assert lines[7:] == [
        "together 2.00x as many tokens a second; 1 of 3 answers are those made alone",
        "4 prompt tokens came from the cache",
        "5 forwards (4 denoise, 1 prefill), 60% of their rows in use; the scheduler's own time is"
        " 40 ms a forward, 10.0%",
    ]


def test_what_nobody_told_is_not_shown():
    found = replace(
        REPORT.found,
        rate=None,
        concurrency=8,
        rounds=2,
        ratios=(1.0, 2.0),
        sharing=None,
        together=replace(REPORT.found.together, waiting=None, asked=0, prompt_tokens_cached=0),
    )
    shown = readable(replace(REPORT, sampler={}, found=found))
    assert "3 requests, 8 in flight; at most 64 new tokens, the server's sampler" in shown
    assert "together 1.50x as many tokens a second (1.10 to 1.90 in 2 rounds)" in shown
    assert "cache" not in shown
    assert "rows in use" not in shown
    assert shown.splitlines()[5].rstrip().endswith("-")


@pytest.mark.parametrize(("text", "lengths"), [("16-128", (16, 128)), ("7", (7, 7)), (None, None)])
def test_ranges(text, lengths):
    assert Given(prompt_lengths=text).lengths == lengths


@pytest.mark.parametrize("text", ["", "0", "9-3", "-4", "3-", "a-b", "1-99999999", "٣-٤"])
def test_what_is_no_range(text):
    with pytest.raises(UsageError, match="give a range like 16-128"):
        _ = Given(prompt_lengths=text).lengths


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("--requests", "3"), "--requests goes with --serve only"),
        (("--prompt-lengths", "3"), "--prompt-lengths goes with --serve only"),
        (("--serve", "--compare", "torch"), "--compare means nothing to --serve"),
        (("--serve", "--prompt", "a"), "--prompt means nothing to --serve"),
        (("--serve", "--plot", "a.svg"), "--plot means nothing to --serve"),
        (("--serve", "--rate", "0"), "--rate is 0.0"),
        (("--serve", "--rate", "nan"), "--rate is nan"),
        (("--serve", "--rate", "1", "--concurrency", "2"), "--rate and --concurrency exclude"),
        (("--serve", "--tasks", "t", "--prompt-lengths", "2"), "--tasks and --prompt-lengths"),
        (("--serve", "--url", "http://a", "--target", "b"), "--url and --target exclude"),
        (("--serve", "--prompt-lengths", "x"), "--prompt-lengths is 'x'"),
        (("--serve", "--requests", "0"), "--requests"),
        (("--serve", "--steps", "0"), "steps is 0"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(dlmc, benched, line, words):
    outcome = dlmc("bench", "bundle", *line)
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err
    assert not benched


def test_an_address_that_is_none(dlmc, bundle):
    outcome = dlmc("bench", str(bundle), "--serve", "--url", "here")
    assert outcome.status == 2
    assert "--url is 'here'" in outcome.err
