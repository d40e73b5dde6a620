import json
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from dlmc.bench.load import InFlight
from dlmc.bench.served import Load
from dlmc.bench.serving import InProcess, ServeOptions, bench_serving
from dlmc_runtime.errors import RequestError, UsageError
from dlmc_runtime.events import Committed, Finished, Result
from dlmc_runtime.generate import Generator
from dlmc_runtime.row import Request
from dlmc_runtime.scheduler import Limits

TARGET = "onnxruntime-cpu"
QUICK = ServeOptions(requests=6, lengths=(4, 24), max_new_tokens=12, load=Load(concurrency=4))


def test_every_part_of_a_report(shared_root):
    said: list[str] = []
    report = bench_serving(shared_root, TARGET, QUICK, said.append)
    found = report.found
    assert (report.bundle, report.engine) == ("tiny-sdar", TARGET)
    assert (report.max_new_tokens, report.sampler["name"]) == (12, "low_confidence_dynamic")
    for way in (found.alone, found.together):
        assert (way.requests, way.failed, way.tokens) == (6, {}, 6 * 12)
        assert way.latency is not None
        assert way.first_block is not None
        assert way.latency.p99 >= way.latency.p50 >= way.first_block.p50 > 0
    assert found.sharing is not None
    assert found.together.row_forwards == found.sharing.rows == found.alone.row_forwards
    assert 0 < found.sharing.occupancy <= 1
    assert found.sharing.busy_seconds > found.sharing.forward_seconds > 0
    assert found.same == 6
    assert said[:2] == [f"loading {TARGET}", "warming up"]


def test_arrivals_at_random_times(shared_root):
    report = bench_serving(shared_root, TARGET, replace(QUICK, load=Load(rate=1000.0, rounds=2)))
    assert (report.found.rate, report.found.together.requests) == (1000.0, 12)
    assert len(report.found.ratios) == 2


def test_questions_have_right_answers(shared_root, tmp_path):
    lines = [{"prompt": "sort 3 1 2 5 4", "answer": "1 2 3 4 5"}, {"prompt": "4+5=?", "answer": ""}]
    lines[1]["answer"] = "no number"
    path = tmp_path / "asked.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    options = replace(QUICK, tasks=path, lengths=None, max_new_tokens=None)
    found = bench_serving(shared_root, TARGET, options).found
    for way in (found.alone, found.together):
        assert (way.asked, way.exact) == (6, 3)
    assert found.together.tokens < 6 * 64  # they end where the model ends


def test_the_first_block_is_the_first_that_is_final(monkeypatch):
    result = Result("ab", (1, 2), 3, 4, "stop", 1.0, 0.5)
    told = [Committed(0, (1,), "a"), Committed(0, (2,), "b"), Finished(0, result)]
    clock = iter([10.0, 11.0, 13.0, 17.0])
    monkeypatch.setattr("dlmc.bench.serving.time", SimpleNamespace(monotonic=lambda: next(clock)))
    server = InProcess(cast("Generator", SimpleNamespace(events=lambda _: told)), [])
    call = server._one(cast("Request", None))
    assert (call.sent, call.admitted, call.first_block, call.ended) == (10.0, 10.0, 11.0, 13.0)
    assert (call.tokens, call.forwards, call.made, call.text) == (2, 4, (1, 2), "ab")


def test_arbitrary_prompts_fit_where_nothing_is_said(shared_root):
    options = replace(QUICK, lengths=None, requests=2)
    assert bench_serving(shared_root, TARGET, options).found.together.failed == {}


def test_requests_that_find_the_queue_full_have_failed(shared_root):
    options = replace(QUICK, requests=12, load=Load(rate=1e6), limits=Limits(queue=1))
    found = bench_serving(shared_root, TARGET, options).found
    assert found.together.failed.keys() == {"OverloadError"}
    good = found.together.requests - found.together.failed["OverloadError"]
    assert found.together.tokens == 12 * good


def test_an_engine_that_fails_under_load_fails_its_requests(shared_root, monkeypatch):
    with Generator.load(shared_root, TARGET) as generator:
        requests = [generator.request([7] * 4, max_new_tokens=4) for _ in range(2)]
        generator.engine.close()
        calls, sharing = InProcess(generator, requests).together(InFlight(1))
    assert [call.error for call in calls] == ["EngineError"] * 2
    assert sharing is not None
    assert sharing.rows == 0


def test_a_request_that_does_not_fit(shared_root):
    with pytest.raises(RequestError):
        bench_serving(shared_root, TARGET, replace(QUICK, lengths=(200, 200)))


def test_a_file_that_is_not_there(shared_root, tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        bench_serving(shared_root, TARGET, replace(QUICK, tasks=tmp_path / "none.jsonl"))
