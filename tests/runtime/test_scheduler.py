import gc
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest

from dlmc_runtime.cache import Cache, cache_shapes
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.errors import DeadlineError, DlmcError, EngineError, OverloadError, RequestError
from dlmc_runtime.events import Committed, Denoised, Event, Failed, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.preflight import ThisMachine
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.scheduler import Limits, Scheduler
from dlmc_runtime.ticket import Ticket

SCRIPT = np.arange(60)
WAIT = 60.0


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


def widths(*batches, cache=48):
    return shapes(*((b, t, cache, r) for b in batches for t, r in ((4, 4), (16, 1))))


class Gate:
    """An engine that runs no forward until it is let."""

    def __init__(self, engine):
        self.engine, self.waiting, self.go = engine, threading.Event(), threading.Semaphore(0)
        self.open = False
        self.failure = None

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        self.waiting.set()
        if not self.open:
            assert self.go.acquire(timeout=WAIT)
        if self.failure is not None:
            raise self.failure
        return self.engine.forward(inputs, cache, stores)

    def let(self, forwards=1):
        """Let forwards through, one by one; return when the next one wants to begin."""
        for _ in range(forwards):
            self.wait()
            self.waiting.clear()
            self.go.release()
        self.wait()

    def wait(self):
        assert self.waiting.wait(WAIT)

    def release(self):
        self.open = True
        self.go.release(1000)


def nobody(event):
    pass


class Gated(Scheduler):
    """A scheduler that serves an engine behind a gate."""

    def __init__(self, gate, limits):
        super().__init__(Generator(gate, None), limits)
        self.gate = gate


@pytest.fixture
def gated(manifest, scripted):
    """Make a scheduler over a gated scripted engine: ``gated(profiles, limits, **manifest)``."""
    made = []

    def make(profiles=None, limits=None, **changes):
        facts = manifest(profiles=profiles or widths(1, 2, 4), guided=True, **changes)
        scheduler = Gated(Gate(scripted(facts, SCRIPT)), limits)
        made.append(scheduler)
        return scheduler

    yield make
    for scheduler in made:
        scheduler.gate.release()
        scheduler.close()


def ask(scheduler, prompt=(7,), count=4, slots=1, told=None, **options):
    """Submit a request over the script; a token is one forward."""
    sampler = SamplerConfig("sequential", guidance=1.5 if slots == 2 else 0.0)
    request = scheduler.generator.request([*prompt], max_new_tokens=count, sampler=sampler)
    return scheduler.submit(request, nobody if told is None else told.append, **options)


def answer(prompt, count):
    return tuple(SCRIPT[(len(prompt) + np.arange(count)) % 60].tolist())


def the_same(result, alone):
    """Whether two results differ in nothing but what others did meanwhile."""
    blank = {"seconds": 0.0, "cached_tokens": 0, "forwards": 0, "tokens_per_forward": 0}
    return replace(result, **blank) == replace(alone, **blank)


def prompts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, rng.integers(1, 24)).tolist() for _ in range(count)]


def requests(generator, regime, count=12):
    names = {
        "full": ("low_confidence", "entropy", "random"),
        "block": ("low_confidence_dynamic", "low_confidence_static", "sequential"),
        "context": ("low_confidence", "low_confidence_static", "autoregressive"),
    }[regime]
    made = []
    for i, prompt in enumerate(prompts(count)):
        changes = {"temperature": (0.0, 0.7)[i % 2], "name": names[i % 3]}
        if changes["name"] != "autoregressive":
            changes["steps"] = (None, 2, 3)[i % 3]
        if regime == "full" and i % 3 == 0:
            changes["cache"] = ("prefix", "dual")[i % 2]
        sampler = SamplerConfig(block_length=4).updated(**changes)
        length = 1 + (5 * i) % 14
        made.append(generator.request(prompt, max_new_tokens=length, sampler=sampler, seed=i))
    return made


FULL = shapes(
    (1, 40, 0, 8), (4, 40, 0, 8), (1, 8, 40, 8), (4, 8, 40, 8), (1, 40, 40, 8), (4, 40, 40, 8)
)


@pytest.mark.parametrize("regime", ["full", "block", "context"])
def test_every_row_is_what_it_would_be_alone(torch_engine, regime):
    engine = torch_engine(regime, profiles=FULL if regime == "full" else None)
    generator = Generator(engine, None)
    asked = requests(generator, regime)
    alone = [generator.run([request])[0] for request in asked]
    scheduler = Scheduler(generator)
    tickets = [scheduler.submit(request, nobody) for request in asked]
    with scheduler:
        together = [ticket.result(WAIT) for ticket in tickets]
        assert scheduler.wait(WAIT)
        counted = scheduler.statistics()
    for one, other in zip(together, alone, strict=True):
        assert the_same(one, other)
    assert counted.rows_fed / counted.slots_fed > 0.5
    assert sum(counted.finished.values()) == len(asked)
    assert counted.tokens == sum(len(one.tokens) for one in alone)
    assert counted.prompt_tokens == sum(one.prompt_tokens for one in alone)
    assert counted.cached_tokens == sum(one.cached_tokens for one in together)
    assert counted.row_forwards == sum(one.forwards for one in together)
    assert (counted.waiting, counted.active, counted.failed, counted.cancelled) == (0, 0, {}, 0)
    assert 0 < counted.forward_seconds < counted.busy_seconds


def test_many_threads_submit_cancel_and_time_out_at_random(torch_engine):
    generator = Generator(torch_engine("block", profiles=widths(1, 2, 4)), None)
    asked = requests(generator, "block")
    alone = [generator.run([request])[0] for request in asked]
    outcomes: list[bool | type[DlmcError]] = []
    ended: list[tuple[Ticket, list[Event]]] = []

    def client(seed):
        rng = np.random.default_rng(seed)
        for index in rng.permutation(len(asked))[:8].tolist():
            told: list[Event] = []
            fate = rng.random()
            ticket = scheduler.submit(
                asked[index],
                told.append,
                client=str(seed % 3),
                seconds=float(rng.choice([0.0, 0.01])) if fate < 0.2 else None,
            )
            if fate > 0.7:
                threading.Event().wait(float(rng.random()) / 100)
                ticket.cancel()
            try:
                result = ticket.result(WAIT)
            except (DeadlineError, RequestError) as error:
                outcomes.append(type(error))
            else:
                outcomes.append(the_same(result, alone[index]))
                ended.append((ticket, told))

    with Scheduler(generator) as scheduler:
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT)
        assert scheduler.wait(WAIT)
        counted = scheduler.statistics()
    assert len(outcomes) == 48
    assert all(isinstance(told[-1], Finished) for ticket, told in ended if not ticket.cancelled)
    assert outcomes.count(False) == 0
    assert outcomes.count(True) == sum(counted.finished.values()) > 20
    assert outcomes.count(DeadlineError) == counted.failed["DeadlineError"] > 0
    assert outcomes.count(RequestError) == counted.cancelled
    assert (counted.waiting, counted.active) == (0, 0)


def test_events_of_a_request_come_in_order_on_one_thread(gated):
    scheduler = gated()
    names, told = set(), []

    def listener(event):
        names.add(threading.current_thread().name)
        told.append(event)

    scheduler.gate.release()
    with scheduler:
        request = scheduler.generator.request([7] * 6, max_new_tokens=5)
        others = [ask(scheduler) for _ in range(3)]
        result = scheduler.submit(request, listener).result(WAIT)
        for other in others:
            other.result(WAIT)
    assert names == {"dlmc-scheduler"}
    assert {event.row for event in told} == {0}
    assert [type(event) for event in told].count(Finished) == 1
    assert told[-1] == Finished(0, result)
    committed = [token for e in told if isinstance(e, Committed) for token in e.tokens]
    assert tuple(committed) == result.tokens == answer([7] * 6, 5)
    assert any(isinstance(event, Denoised) for event in told)


def test_rows_join_between_forwards_and_leave_when_they_are_done(gated):
    scheduler = gated()
    with scheduler:
        first = ask(scheduler, count=12)
        scheduler.gate.let(2)
        second = ask(scheduler, count=1)
        scheduler.gate.let(1)  # joins
        assert scheduler.statistics().active == 2
        scheduler.gate.let(1)
        assert second.result(WAIT).tokens == answer([7], 1)
        scheduler.gate.wait()
        now = scheduler.statistics()
        assert (now.active, now.slots, first.done) == (1, 4, False)
        scheduler.gate.release()
        assert first.result(WAIT).tokens == answer([7], 12)
    fed = [profile.batch for profile, _, _ in scheduler.gate.engine.calls]
    assert fed[:5] == [1, 1, 1, 2, 1]
    assert first.submitted <= first.admitted <= first.first_block <= first.ended
    assert second.admitted > first.admitted
    assert second.ended < first.ended


def test_a_request_that_waits_can_be_cancelled(gated):
    scheduler = gated(limits=Limits(rows=1))
    with scheduler:
        told: list[Event] = []
        first = ask(scheduler, count=8)
        scheduler.gate.wait()
        second = ask(scheduler, told=told)
        third = ask(scheduler)
        second.cancel()
        scheduler.gate.release()
        assert third.result(WAIT).tokens == answer([7], 4)
        with pytest.raises(RequestError, match="was cancelled"):
            second.result(WAIT)
        assert first.done
        assert second.admitted is None
        assert told == []
        assert scheduler.wait(WAIT)
        assert scheduler.statistics().cancelled == 1


def test_a_row_that_is_cancelled_leaves_before_the_next_forward(gated):
    scheduler = gated(limits=Limits(rows=1))
    with scheduler:
        told: list[Event] = []
        first = ask(scheduler, count=20, told=told)
        second = ask(scheduler, count=1)
        scheduler.gate.let(3)
        assert len(told) > 0
        before = len(told)
        first.cancel()
        scheduler.gate.let(1)  # this one was under way
        assert first.done
        assert len(told) == before
        assert second.admitted is not None
        scheduler.gate.release()
        assert second.result(WAIT).tokens == answer([7], 1)
    assert len(scheduler.gate.engine.calls) == 5


def test_cancelling_what_has_ended_changes_nothing(gated):
    scheduler = gated()
    scheduler.gate.release()
    with scheduler:
        one = ask(scheduler)
        result = one.result(WAIT)
        one.cancel()
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)
        assert one.result(WAIT) is result
        assert scheduler.wait(WAIT)
        assert scheduler.statistics().cancelled == 0


def test_a_listener_may_cancel(gated):
    scheduler = gated()
    told: list[Event] = []
    ticket: list[Ticket] = []

    def listener(event):
        told.append(event)
        ticket[0].cancel()

    with scheduler:
        request = scheduler.generator.request([7], max_new_tokens=12)
        ticket.append(scheduler.submit(request, listener))
        scheduler.gate.release()
        with pytest.raises(RequestError, match="was cancelled"):
            ticket[0].result(WAIT)
    assert len(told) == 1


def test_a_listener_that_raises_is_alone_with_it(gated, caplog):
    scheduler = gated()

    def listener(event):
        raise KeyError("a defect")

    with scheduler:
        request = scheduler.generator.request([7], max_new_tokens=12)
        bad, good = scheduler.submit(request, listener), ask(scheduler, count=9)
        scheduler.gate.release()
        with pytest.raises(RequestError, match="was cancelled"):
            bad.result(WAIT)
        assert good.result(WAIT).tokens == answer([7], 9)
        assert scheduler.alive
    assert "a listener failed" in caplog.text


def test_a_deadline_ends_who_waits_and_who_runs(gated):
    scheduler = gated(limits=Limits(rows=1))
    with scheduler:
        told: tuple[list[Event], list[Event]] = [], []
        running = ask(scheduler, count=40, seconds=3600.0, told=told[0])
        scheduler.gate.let(1)
        waiting = ask(scheduler, seconds=0.0, told=told[1])
        running.deadline = running.submitted  # time flies
        after = ask(scheduler, count=1)
        scheduler.gate.let(1)
        scheduler.gate.release()
        for ticket in (running, waiting):
            with pytest.raises(DeadlineError, match="was not done within its time"):
                ticket.result(WAIT)
        assert after.result(WAIT).tokens == answer([7], 1)
        assert scheduler.wait(WAIT)
        for events in told:
            assert isinstance(events[-1], Failed)
            assert sum(isinstance(event, Failed) for event in events) == 1
        assert scheduler.statistics().failed == {"DeadlineError": 2}


def test_more_than_may_wait_are_told_when_to_come_again(gated):
    scheduler = gated(limits=Limits(rows=1, queue=2))
    with scheduler:
        first = ask(scheduler)
        scheduler.gate.wait()
        waiting = [ask(scheduler), ask(scheduler)]
        with pytest.raises(OverloadError, match="2 requests are waiting already") as caught:
            ask(scheduler)
        assert 1.0 <= caught.value.retry_after <= 60.0
        assert scheduler.statistics().waiting == 2
        scheduler.gate.release()
        for ticket in (first, *waiting):
            assert ticket.result(WAIT).tokens == answer([7], 4)
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)


def test_when_to_come_again_is_what_half_of_the_queue_takes(gated):
    scheduler = gated(limits=Limits(queue=4))
    scheduler._counts.finished["stop"] = 10
    for _ in range(4):
        ask(scheduler)
    for busy, after in ((30.0, 6.0), (0.1, 1.0), (900.0, 60.0)):
        scheduler._counts.busy_seconds = busy
        with pytest.raises(OverloadError) as caught:
            ask(scheduler)
        assert caught.value.retry_after == pytest.approx(after)


def test_clients_take_turns(gated):
    scheduler = gated(limits=Limits(rows=1))
    tickets = {"a": [ask(scheduler, count=1, client="a") for _ in range(4)]}
    for client in ("b", "c"):
        tickets[client] = [ask(scheduler, count=1, client=client) for _ in range(2)]
    scheduler.gate.release()
    with scheduler:
        assert scheduler.wait(WAIT)
    order = sorted((t.admitted, name) for name, line in tickets.items() for t in line)
    assert [name for _, name in order] == [*"abcabcaa"]


def test_a_pair_is_not_overtaken_for_ever(gated):
    scheduler = gated(limits=Limits(rows=2))
    with scheduler:
        first = ask(scheduler, count=6, client="a")
        scheduler.gate.let(1)
        pair = ask(scheduler, count=2, slots=2, client="b")
        later = [ask(scheduler, count=2, client=name) for name in "cdef" for _ in range(3)]
        scheduler.gate.release()
        assert pair.result(WAIT).tokens == answer([7], 2)
        for ticket in (first, *later):
            ticket.result(WAIT)
    assert all(pair.admitted < ticket.admitted for ticket in later)


def test_a_pair_that_never_fits_is_refused(gated):
    scheduler = gated(limits=Limits(rows=1))
    with pytest.raises(RequestError, match="guidance takes 2 rows of a batch"):
        ask(scheduler, slots=2)
    with pytest.raises(RequestError, match="need 52 cached positions"):
        ask(scheduler, prompt=[7] * 50, count=6)
    assert scheduler.statistics().waiting == 0


def test_draining_serves_those_who_are_there(gated):
    scheduler = gated(limits=Limits(rows=1))
    with scheduler:
        tickets = [ask(scheduler), ask(scheduler)]
        scheduler.gate.wait()
        scheduler.drain()
        assert scheduler.draining
        with pytest.raises(OverloadError, match="shutting down") as caught:
            ask(scheduler)
        assert caught.value.retry_after > 0
        assert not scheduler.wait(0.01)
        scheduler.gate.release()
        assert scheduler.wait(WAIT)
        assert scheduler.alive
        for ticket in tickets:
            assert ticket.done
            assert ticket.result(0).tokens == answer([7], 4)


def test_waiting_covers_a_request_on_its_way_to_a_batch(gated, monkeypatch):
    scheduler = gated()
    scheduler.gate.release()
    opening, go = threading.Event(), threading.Event()
    cache = type(scheduler.gate.engine).cache

    def slow(engine, *sizes):
        opening.set()
        assert go.wait(WAIT)
        return cache(engine, *sizes)

    monkeypatch.setattr(type(scheduler.gate.engine), "cache", slow)
    with scheduler:
        one = ask(scheduler)
        assert opening.wait(WAIT)
        assert not scheduler.wait(0.01)
        go.set()
        assert scheduler.wait(WAIT)
        assert one.done


def test_closing_fails_what_is_left(gated):
    scheduler = gated(limits=Limits(rows=1))
    told: tuple[list[Event], list[Event]] = [], []
    scheduler.start()
    tickets = [ask(scheduler, count=30, told=events) for events in told]
    scheduler.gate.wait()
    closing = [threading.Thread(target=scheduler.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    while not scheduler.draining:  # until one of them has begun to close it
        time.sleep(0.001)
    scheduler.gate.release()
    for thread in closing:
        thread.join(WAIT)
    for ticket, events in zip(tickets, told, strict=True):
        with pytest.raises(OverloadError, match="shut down"):
            ticket.result(WAIT)
        assert isinstance(events[-1], Failed)
    assert not scheduler.alive
    scheduler.close()
    with pytest.raises(OverloadError, match="shutting down"):
        ask(scheduler)
    scheduler.start()
    assert not scheduler.alive
    assert scheduler.wait(WAIT)
    assert not scheduler.gate.engine.closed


def test_closing_waits_no_longer_than_it_is_told_for_a_forward(gated):
    scheduler = gated()
    scheduler.start()
    assert scheduler.round_seconds == 0
    told: tuple[list[Event], list[Event]] = [], []
    tickets = [ask(scheduler, told=events) for events in told]
    scheduler.gate.wait()
    tickets += [ask(scheduler), ask(scheduler)]
    tickets[-1].cancel()
    assert scheduler.round_seconds > 0
    assert not scheduler.close(0.01)
    for ticket in tickets:
        assert ticket.done
        with pytest.raises(OverloadError, match="shut down"):
            ticket.result(0)
    scheduler.gate.release()
    assert scheduler.close(WAIT)
    assert [len(events) for events in told] == [1, 1]
    assert scheduler.statistics().failed["OverloadError"] == len(tickets)


def test_who_is_being_admitted_is_told_of_the_end(gated, monkeypatch):
    scheduler, inside, go_on = gated(), threading.Event(), threading.Event()
    opened = scheduler.generator.engine.cache

    def hang(*sizes):
        inside.set()
        assert go_on.wait(WAIT)
        return opened(*sizes)

    monkeypatch.setattr(scheduler.generator.engine, "cache", hang, raising=False)
    scheduler.gate.release()
    scheduler.start()
    ticket = ask(scheduler)
    assert inside.wait(WAIT)
    assert not scheduler.close(0)
    with pytest.raises(OverloadError, match="shut down"):
        ticket.result(0)
    go_on.set()
    assert scheduler.close(WAIT)


def test_a_round_has_an_end(gated):
    scheduler = gated()
    scheduler.gate.release()
    with scheduler:
        ask(scheduler).result(WAIT)
        assert scheduler.wait(WAIT)
        assert scheduler.round_seconds == 0
        assert scheduler.statistics().busy_seconds > 0


def test_closing_what_was_never_started_fails_what_waits(gated):
    scheduler = gated()
    one = ask(scheduler)
    assert not scheduler.alive
    assert not scheduler.wait(0.01)
    assert scheduler.close(0)
    with pytest.raises(OverloadError, match="shut down"):
        one.result(WAIT)
    assert scheduler.wait(WAIT)


def test_closing_where_no_thread_could_be_started_fails_what_waits(gated, monkeypatch):
    def no(thread):
        raise RuntimeError("can't start new thread")

    scheduler = gated()
    ticket = ask(scheduler)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no)
        with pytest.raises(RuntimeError, match="new thread"):
            scheduler.start()
    scheduler.close()
    with pytest.raises(OverloadError, match="shut down"):
        ticket.result(0)


def test_an_engine_that_fails_again_and_again_is_not_alive_until_it_works(gated):
    scheduler = gated()
    scheduler.gate.release()
    with scheduler:
        assert scheduler.alive
        scheduler.gate.failure = EngineError("the device is gone")
        for count in range(1, 4):
            with pytest.raises(EngineError, match="is gone"):
                ask(scheduler).result(WAIT)
            assert scheduler.wait(WAIT)
            assert scheduler.alive == (count < 3)
        scheduler.gate.failure = None
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)
        assert scheduler.wait(WAIT)
        assert scheduler.alive
        assert scheduler.statistics().failed == {"EngineError": 3}


def test_an_engine_that_was_closed_fails_every_request_and_hangs_none(gated):
    scheduler = gated()
    with scheduler:
        first, second = ask(scheduler, count=20), ask(scheduler)
        scheduler.gate.let(1)
        closed = EngineError("the engine was closed")

        def refuse(*_):
            raise closed

        scheduler.gate.failure = closed
        (pool,) = scheduler._pools.values()
        pool.batch.cache.clear = pool.batch.cache.move = refuse
        scheduler.gate.release()
        for ticket in (first, second, ask(scheduler), ask(scheduler)):
            with pytest.raises(EngineError, match="was closed"):
                ticket.result(WAIT)


def test_a_batch_that_cannot_be_opened_fails_its_request(gated, monkeypatch):
    scheduler = gated()
    scheduler.gate.release()

    def no(*sizes):
        raise OSError("no such device")

    with scheduler:
        with monkeypatch.context() as patch:
            patch.setattr(type(scheduler.gate.engine), "cache", no)
            with pytest.raises(EngineError, match=r"cannot take the request \(OSError\)"):
                ask(scheduler).result(WAIT)
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)


def test_a_device_with_little_memory_gets_a_narrower_batch(gated, monkeypatch):
    scheduler = gated()
    scheduler.gate.release()
    cache = type(scheduler.gate.engine).cache

    def scarce(engine, batch, size):
        if batch > 2:
            raise MemoryError
        return cache(engine, batch, size)

    monkeypatch.setattr(type(scheduler.gate.engine), "cache", scarce)
    with scheduler:
        for ticket in [ask(scheduler) for _ in range(5)]:
            assert ticket.result(WAIT).tokens == answer([7], 4)
        assert scheduler.statistics().slots == 2


TWO = (*widths(1, 2, cache=16), *widths(1, 2, cache=64))


def size_of(scheduler, batch, context):
    shapes = cache_shapes(scheduler.generator.manifest.model, batch, context)
    return 4 * sum(int(np.prod(shape)) for shape in shapes.values())


def bounded(gated, *caches):
    """Make a scheduler whose memory holds exactly caches of (batch, context)."""
    scheduler = gated(TWO)
    most = sum(size_of(scheduler, *cache) for cache in caches)
    return gated(TWO, Limits(cache_bytes=most))


def test_the_longest_request_counts_in_its_narrowest_batch(gated):
    scheduler = gated(TWO)
    assert scheduler.longest_cache == size_of(scheduler, 1, 64)


def test_half_of_what_is_free_is_for_caches_where_nobody_says(gated, monkeypatch):
    free = 2 * size_of(gated(TWO), 2, 16)
    for bytes_free, slots in ((free, 2), (free - 1, 1)):
        monkeypatch.setattr(ThisMachine, "free_memory", lambda _, *, gpu, n=bytes_free: n)
        scheduler = gated(TWO)
        scheduler.gate.release()
        with scheduler:
            ask(scheduler).result(WAIT)
            assert scheduler.statistics().slots == slots


def long(scheduler, count=2, **options):
    return ask(scheduler, prompt=[7] * 30, count=count, **options)


def test_caches_of_several_sizes_are_open_side_by_side(gated):
    scheduler = bounded(gated, (2, 16), (2, 64))
    with scheduler:
        tickets = [ask(scheduler, count=8), long(scheduler)]
        scheduler.gate.let(2)
        assert scheduler.statistics().slots == 4
        assert scheduler.statistics().active == 2
        scheduler.gate.release()
        assert tickets[0].result(WAIT).tokens == answer([7], 8)
        assert tickets[1].result(WAIT).tokens == answer([7] * 30, 2)


def test_a_batch_is_closed_for_another_that_needs_its_memory(gated):
    scheduler = bounded(gated, (2, 64))
    scheduler.gate.release()
    with scheduler:
        for _ in range(2):
            assert long(scheduler).result(WAIT).tokens == answer([7] * 30, 2)
            assert scheduler.wait(WAIT)
            assert [*scheduler._pools] == [(2, 64)]
            assert ask(scheduler).result(WAIT).tokens == answer([7], 4)
            assert scheduler.wait(WAIT)
            assert [*scheduler._pools] == [(2, 16)]


def test_the_memory_of_a_closed_batch_is_free_before_another_is_opened(gated, monkeypatch):
    scheduler = bounded(gated, (2, 64))
    scheduler.gate.release()
    cache = type(scheduler.gate.engine).cache
    opened: list[weakref.ref[Cache]] = []
    held: list[list[bool]] = []

    def noting(engine, batch, size):
        gc.collect()
        held.append([one() is not None for one in opened])
        made = cache(engine, batch, size)
        opened.append(weakref.ref(made))
        return made

    monkeypatch.setattr(type(scheduler.gate.engine), "cache", noting)
    with scheduler:
        for asked in (long, ask, long):
            asked(scheduler).result(WAIT)
            assert scheduler.wait(WAIT)
    assert held == [[], [False], [False, False]]


def test_nobody_waits_for_ever_for_the_memory_that_others_use(gated):
    scheduler = bounded(gated, (1, 64))
    with scheduler:
        first = ask(scheduler, count=4, client="a")
        scheduler.gate.let(1)
        other = long(scheduler, client="b")
        later = [ask(scheduler, count=4, client=name) for name in "acde" for _ in range(3)]
        scheduler.gate.release()
        assert other.result(WAIT).tokens == answer([7] * 30, 2)
        for ticket in (first, *later):
            assert ticket.result(WAIT).tokens == answer([7], 4)
    assert sum(ticket.admitted < other.admitted for ticket in later) <= 1


def test_a_pair_gets_a_wider_batch_once_there_is_memory(gated):
    scheduler = bounded(gated, (1, 16), (1, 64))
    with scheduler:
        other = long(scheduler, count=6)
        scheduler.gate.let(1)
        single = ask(scheduler, count=2)
        scheduler.gate.let(1)
        assert scheduler.statistics().slots == 2  # one each: memory allows no more
        pair = ask(scheduler, count=2, slots=2)
        scheduler.gate.release()
        for ticket in (other, single, pair):
            ticket.result(WAIT)
        assert pair.result(WAIT).tokens == answer([7], 2)
        assert scheduler.wait(WAIT)


def test_what_memory_can_never_hold_is_an_error(gated):
    scheduler = bounded(gated, (1, 16))
    scheduler.gate.release()
    with scheduler:
        with pytest.raises(EngineError, match="does not hold a batch of 1 with 64 positions"):
            long(scheduler).result(WAIT)
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)
        with pytest.raises(EngineError, match="does not hold a batch of 2 with 16 positions"):
            ask(scheduler, slots=2).result(WAIT)
        assert ask(scheduler).result(WAIT).tokens == answer([7], 4)


def test_a_narrow_batch_is_opened_wider_when_memory_is_free_again(gated):
    scheduler = bounded(gated, (2, 16), (1, 64))
    with scheduler:
        one = ask(scheduler, count=8)
        scheduler.gate.let(1)
        tall = long(scheduler)
        scheduler.gate.let(2)
        assert scheduler.statistics().slots == 3
        scheduler.gate.release()
        one.result(WAIT)
        tall.result(WAIT)
        assert scheduler.wait(WAIT)
        scheduler._cache_bytes = size_of(scheduler, 2, 16) + size_of(scheduler, 2, 64)
        assert long(scheduler).result(WAIT).tokens == answer([7] * 30, 2)
        assert scheduler.statistics().slots == 4


def test_answers_serve_the_next_turn_of_a_conversation(torch_engine):
    engine = torch_engine("block", profiles=widths(1, 2, cache=96))
    generator = Generator(engine, None)
    first = generator.request([*range(30)], max_new_tokens=20, ignore_eos=True)
    with Scheduler(generator) as scheduler:
        one = scheduler.submit(first, nobody).result(WAIT)
        text = [*range(30), *one.tokens, 5, 6, 7]
        second = generator.request(text, max_new_tokens=9, logprobs=1)
        alone = generator.run([second])[0]
        again = scheduler.submit(second, nobody).result(WAIT)
        counted = scheduler.statistics()
    assert again.tokens == alone.tokens
    assert again.cached_tokens == 48  # the last block was never committed
    assert again.forwards < alone.forwards
    assert counted.cached_tokens == 48
    assert counted.prefix_bytes > 0


def test_prefixes_can_be_turned_off(torch_engine):
    generator = Generator(torch_engine("block", profiles=widths(1, 2, cache=96)), None)
    request = generator.request([*range(30)], max_new_tokens=4)
    with Scheduler(generator, Limits(prefix_bytes=0)) as scheduler:
        results = [scheduler.submit(request, nobody).result(WAIT) for _ in range(2)]
        assert scheduler.statistics().prefix_bytes == 0
    assert [one.cached_tokens for one in results] == [0, 0]


class Sick:
    """An engine that answers NaN about rows whose first token is 59, and spoils their cache."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        said = self.engine.forward(inputs, cache, stores)
        # Padding keeps the tokens of an earlier row, in a slot that another may have by now.
        fed = [rows is not None for rows in inputs.filled_for]
        slots = np.flatnonzero(fed & (inputs.input_ids[:, 0] == 59))
        arrays = {name: array.copy() for name, array in said.arrays().items()}
        for slot in slots:
            for array in [a for a in arrays.values() if a.dtype.kind == "f"]:
                array[slot] = np.nan
            for past in cache.past.values():
                past[slot] = np.nan
        return Outputs(**arrays)


def test_an_answer_of_nan_fails_its_request_alone(torch_engine):
    plain = Generator(torch_engine("block", profiles=widths(1, 2, 4)), None)
    asked = [replace(one, logprobs=None) for one in requests(plain, "block")]
    alone = [plain.run([request])[0] for request in asked]
    generator = Generator(Sick(plain.engine), None)
    sick = generator.request([59] * 9, max_new_tokens=4)
    with Scheduler(generator) as scheduler:
        pairs = [
            (scheduler.submit(sick, nobody), scheduler.submit(request, nobody)) for request in asked
        ]
        for (bad, good), wanted in zip(pairs, alone, strict=True):
            with pytest.raises(EngineError, match="answered NaN"):
                bad.result(WAIT)
            assert the_same(good.result(WAIT), wanted)
        assert scheduler.alive
        assert scheduler.wait(WAIT)
        assert scheduler.statistics().failed == {"EngineError": len(asked)}


def test_nothing_is_left_of_many_short_requests(gated):
    scheduler = gated(widths(4), Limits(queue=2000, prefix_bytes=2048))
    scheduler.gate.release()
    engine = scheduler.gate.engine
    request = scheduler.generator.request([7] * 5, max_new_tokens=1)

    def serve(count):
        tickets = [scheduler.submit(request, nobody) for _ in range(count)]
        assert all(ticket.result(WAIT).tokens == (5,) for ticket in tickets)
        assert scheduler.wait(WAIT)
        engine.calls.clear()
        return weakref.ref(tickets[0]), weakref.ref(tickets[-1].row)

    with scheduler:
        serve(8)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(4):
            left = serve(500)
        gc.collect()
        assert [one() for one in left] == [None, None]
        assert len(gc.get_objects()) - before < 100
        assert scheduler.statistics().finished == {"length": 2008}
