import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlmc_runtime.manifest import Profile
from dlmc_runtime.serve.metrics import COUNTERS, GAUGES, LABELLED
from dlmc_runtime.serve.settings import Settings

WAIT = 60.0
THREADS = 40  # of the pool that requests are planned on


def samples(running):
    response = running.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_what_was_done_is_counted(serving, letters):
    running = serving(letters())
    before = samples(running)
    assert before["dlmc_requests_waiting", "test"] == 0
    assert running.complete(max_tokens=5).status_code == 200
    found = samples(running)
    assert found["dlmc_tokens_total", "test"] == 5
    assert found["dlmc_prompt_tokens_total", "test"] == 3
    assert found["dlmc_requests_finished_total", "length", "test"] == 1
    assert found["dlmc_request_seconds_count", "test"] == 1
    assert found["dlmc_first_block_seconds_count", "test"] == 1
    assert found["dlmc_queue_seconds_count", "test"] == 1
    assert found["dlmc_forwards_total", "denoise", "test"] > 0
    assert 0 < found["dlmc_batch_occupancy", "test"] <= 1
    assert found["dlmc_tokens_per_forward", "test"] > 0


def test_rows_room_and_what_was_cached_are_told_apart(serving, letters):
    wide = tuple(Profile(batch=4, block=b, cache=48, rows=r) for b, r in ((4, 4), (16, 1)))
    running = serving(letters(profiles=wide))
    for _ in range(2):
        assert running.complete(prompt="abcdefghi", max_tokens=3).status_code == 200
    found = samples(running)
    rows, room = (found[f"dlmc_batch_{name}_total", "test"] for name in ("rows", "room"))
    assert room == 4 * rows > 0
    assert found["dlmc_batch_occupancy", "test"] == 0.25
    assert found["dlmc_prompt_tokens_total", "test"] == 18
    assert found["dlmc_cached_tokens_total", "test"] == 4
    assert found["dlmc_prefix_bytes", "test"] > 0


def test_times_are_counted_from_arrival(serving, letters):
    running = serving(letters())
    running.served.observe(
        SimpleNamespace(submitted=10.0, admitted=11.0, first_block=13.0, ended=17.0)
    )
    found = samples(running)
    for name, seconds in (("queue", 1.0), ("first_block", 3.0), ("request", 7.0)):
        assert found[f"dlmc_{name}_seconds_sum", "test"] == seconds


def test_failures_are_counted_by_kind(serving, letters):
    running = serving(letters())
    running.engine.engine.sure[:] *= float("nan")
    try:
        assert running.complete().status_code == 503
    finally:
        running.engine.engine.sure[:] = 0.9
    assert samples(running)["dlmc_requests_failed_total", "EngineError", "test"] == 1


def test_every_metric_has_a_name_and_a_text_of_its_own():
    texts = {name: text for name, text, *_ in (*GAUGES, *COUNTERS, *LABELLED)}
    assert len(texts) == len(GAUGES) + len(COUNTERS) + len(LABELLED)
    assert all(str(name).startswith("dlmc_") for name in texts)
    assert all(str(text).endswith(".") for text in texts.values())


def test_health_is_ok_while_requests_are_taken(serving, letters):
    running = serving(letters())
    response = running.client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    running.client.app.state.site.draining = True
    response = running.client.get("/health")
    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    refused = running.complete()
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1


def test_health_tells_of_an_engine_that_is_gone(serving, letters):
    running = serving(letters())
    running.served.scheduler.close()
    response = running.client.get("/health")
    assert response.status_code == 503
    assert response.json() == {"status": "failed", "model": "test"}
    running.client.app.state.site.draining = True  # then that is why
    assert running.client.get("/health").json() == {"status": "draining"}


def test_health_tells_of_a_forward_that_outlasts_every_request(live, letters):
    running = live(letters(), Settings(request_seconds=0.01))
    engine = running.engine
    engine.close_gate()
    try:
        running.served.scheduler.submit(running.served.generator.request("abc"), lambda _: None)
        assert engine.waiting.wait(WAIT)
        for _ in range(6000):
            response = httpx.get(f"{running.url}/health", timeout=WAIT)
            if response.status_code != 200:
                break
            time.sleep(0.01)
        assert response.json() == {"status": "failed", "model": "test"}
    finally:
        engine.open_gate()
    assert running.served.scheduler.wait(WAIT)
    assert httpx.get(f"{running.url}/health", timeout=WAIT).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/metrics", "/health"])
def test_these_are_only_read(shared, path):
    assert shared.client.post(path).status_code == 405


def test_health_is_told_while_all_threads_are_busy(live, letters, monkeypatch):
    running, busy, over = live(letters()), threading.Semaphore(0), threading.Event()

    def plan(*_):
        busy.release()
        assert over.wait(WAIT)
        raise KeyError

    monkeypatch.setattr("dlmc_runtime.serve.completions._plan", plan)

    def ask(_):
        body = {"model": "test", "prompt": "abc"}
        return httpx.post(f"{running.url}/v1/completions", json=body, timeout=WAIT)

    with ThreadPoolExecutor(THREADS) as clients:
        asked = [clients.submit(ask, number) for number in range(THREADS)]
        try:
            assert all(busy.acquire(timeout=WAIT) for _ in range(THREADS))
            assert httpx.get(f"{running.url}/health", timeout=WAIT / 2).json() == {"status": "ok"}
        finally:
            over.set()
        assert {one.result().status_code for one in asked} == {500}
