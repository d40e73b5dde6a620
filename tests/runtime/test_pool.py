"""Rows that come and go, of every kind of model: each is what it would be alone."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dlmc_runtime.batch import Batch
from dlmc_runtime.engines.base import Outputs
from dlmc_runtime.errors import EngineError
from dlmc_runtime.events import Committed, Denoised, Event, Failed, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.pool import Pool
from dlmc_runtime.prefixes import PrefixStore
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.statistics import Counts
from dlmc_runtime.ticket import Ticket

SCRIPT = np.arange(60)
SIZE, CONTEXT, LENGTH = 4, 112, 96
HOT = {"temperature": 0.8}


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


def each(*sizes, batches=(1, 2, 4)):
    return shapes(*((b, *size) for b in batches for size in sizes))


WHOLE = each((LENGTH, CONTEXT, 16), (8, CONTEXT, 8))
BLOCKS = each((8, CONTEXT, 8), (32, CONTEXT, 1))
SHORT = {"aligned_to": "answer", "last_block": "cut", "block_length": 4}
# What is special about a kind of model, and samplers its rows take turns with.
KINDS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "full": (
        {"regime": "full", "profiles": WHOLE},
        (
            {"name": "low_confidence", "block_length": 4, "cache": "dual", "steps": 2},
            {"name": "entropy", "block_length": 8, **HOT},
            {"name": "low_confidence", "block_length": 4, "cache": "prefix"},
            {"name": "wino", "block_length": 4},
            {"name": "random", "block_length": 4, "cache": "dual", "steps": 3, **HOT},
        ),
    ),
    "full_shift": (
        {"regime": "full", "profiles": WHOLE, "shift": 1},
        (
            {"name": "low_confidence", "block_length": 4, "cache": "dual"},
            {"name": "maskgit_plus", "block_length": 8, "steps": 3, **HOT},
            {"name": "low_confidence", "block_length": 4, "cache": "prefix", "steps": 2},
        ),
    ),
    "full_guided": (
        {"regime": "full", "profiles": WHOLE, "guided": True},
        (
            {"name": "low_confidence", "block_length": 4, "guidance": 1.5},
            {"name": "low_confidence", "block_length": 4, "cache": "dual", **HOT},
            {"name": "low_confidence", "block_length": 4, "cache": "prefix", "guidance": 0.5},
        ),
    ),
    "block": (
        {"regime": "block", "profiles": BLOCKS},
        (
            {"name": "low_confidence_dynamic", "threshold": 0.6},
            {"name": "sequential", **HOT},
            {"name": "low_confidence_static", "steps": 2, "sub_block_length": 2},
            {"name": "token_editing", "threshold": 0.5},
        ),
    ),
    "block_guided": (
        {"regime": "block", "profiles": BLOCKS, "guided": True},
        (
            {"name": "low_confidence_static", "steps": 2, "guidance": 1.5},
            {"name": "low_confidence_dynamic", "threshold": 0.6},
            {"name": "sequential", "guidance": 0.5, **HOT},
        ),
    ),
    "block_seeded": (
        {
            "regime": "block",
            "profiles": BLOCKS,
            "shift": 1,
            "attention": {"regime": "block", "block_length": 4, "seeded": True},
        },
        (
            {"name": "low_confidence", "sub_block_length": 2, "cache": "dual"},
            {"name": "low_confidence_static", "steps": 2, **HOT},
            {"name": "low_confidence", "steps": 3},
        ),
    ),
    "block_edge": (
        {"regime": "block", "profiles": BLOCKS, "shift": 1, "attention": SHORT},
        (
            {"name": "low_confidence", "steps": 2},
            {"name": "low_confidence_static", "steps": 3, **HOT},
        ),
    ),
    "context": (
        {
            "regime": "context",
            "profiles": BLOCKS,
            "attention": SHORT | {"regime": "context", "block_length": 8, "seeded": True},
        },
        (
            {"name": "low_confidence", "steps": 3},
            {"name": "autoregressive", **HOT},
            {"name": "linear_speculation"},
            {"name": "low_confidence_static", "steps": 2, **HOT},
        ),
    ),
    "canvas": (
        {"noise": True},
        (
            {"name": "renoise", "steps": 3, "entropy_bound": 1.0},
            {"name": "renoise", "steps": 2, "entropy_bound": 5.0, "confidence_threshold": 2.0},
        ),
    ),
}
KINDS["block_edge"][0]["attention"] = SHORT | {"regime": "block"}


@pytest.fixture(scope="module")
def served(torch_engine, noise_engine):
    """By kind: a generator, requests that often begin alike, and their results alone."""
    made = {}

    def make(kind):
        if kind not in made:
            facts, samplers = KINDS[kind]
            if "noise" in facts:
                engine = noise_engine(each((4, CONTEXT, 4), (32, CONTEXT, 1)), 4, 5)
            else:
                engine = torch_engine(**facts)
            generator = Generator(engine, None)
            asked = requests(generator, samplers)
            made[kind] = generator, asked, [generator.run([one])[0] for one in asked]
        return made[kind]

    return make


def requests(generator, samplers, count=8):
    rng = np.random.default_rng(3)
    stem = rng.integers(0, 60, 70).tolist()
    found = []
    for index in range(count):
        own = rng.integers(0, 60, rng.integers(1, 9)).tolist()
        shared = (0, 33, 40, 66)[rng.integers(4)]
        found.append(
            generator.request(
                stem[:shared] + own,
                max_new_tokens=int(rng.integers(1, 16)),
                sampler=SamplerConfig(**samplers[index % len(samplers)]),
                seed=index,
                ignore_eos=bool(index % 2),
                keep_cache=index % 5 == 0,
                logprobs=2,
            )
        )
    return found


def pool_of(generator, prefix_bytes=1 << 24, size=SIZE):
    batch = Batch(generator.engine, size, CONTEXT)
    return Pool(batch, generator.text, PrefixStore(prefix_bytes), Counts())


class Watched(Ticket):
    """A ticket that lists what it was told, unless another listener hears it."""

    def __init__(self, row, listener):
        self.told: list[Event] = []
        super().__init__(row, (SIZE, CONTEXT), listener or self.told.append, lambda: None, None)


def ticket(generator, request, listener=None):
    return Watched(Row(request, generator.manifest), listener)


def results(one):
    return [event.result for event in one.told if isinstance(event, Finished)]


def check_story(one):
    """Check that events of a request that finished are whole, in order and of row 0."""
    assert {event.row for event in one.told} == {0}
    assert isinstance(one.told[-1], Finished)
    assert len(results(one)) == 1
    committed = [token for e in one.told if isinstance(e, Committed) for token in e.tokens]
    assert tuple(committed) == results(one)[0].tokens
    forwards = [event.forward for event in one.told if isinstance(event, Denoised)]
    assert forwards == sorted(set(forwards))


def check_same(found, alone):
    """Check that a result is what it was alone, but for what other rows spared it."""
    assert found.tokens == alone.tokens
    assert found.finish_reason == alone.finish_reason
    assert found.prompt_tokens == alone.prompt_tokens
    assert found.spans == alone.spans
    if not found.cached_tokens:
        assert found.forwards == alone.forwards
        assert found.tokens_per_forward == alone.tokens_per_forward
    assert found.forwards <= alone.forwards
    assert [one.token for one in found.logprobs] == [*found.tokens]
    for one, other in zip(found.logprobs, alone.logprobs, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert len(one.top) == 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_come_and_go_are_what_they_would_be_alone(served, kind, seed):
    generator, asked, alone = served(kind)
    rng = np.random.default_rng(seed)
    pool, waiting = pool_of(generator), rng.permutation(len(asked)).tolist()
    sitting: dict[int, Watched] = {}
    finished = dropped = 0
    while waiting or sitting:
        chance = rng.random()
        if waiting and chance < 0.4:
            one = ticket(generator, asked[waiting[0]])
            if pool.batch.has_room(one.row):
                sitting[waiting.pop(0)] = one
                pool.join(one)
        elif sitting and chance < 0.45 and dropped < 3:
            index, one = sitting.popitem()
            assert pool.drop(lambda other, one=one: other is one) == [one]
            dropped += 1
            waiting.append(index)  # it comes again
        elif sitting:
            assert pool.turn()
            for index in [index for index, one in sitting.items() if results(one)]:
                one = sitting.pop(index)
                check_story(one)
                check_same(results(one)[0], alone[index])
                finished += 1
    assert finished == len(asked)
    assert not pool.seats
    assert pool.batch.rows == []


@pytest.mark.parametrize("kind", [k for k in KINDS if not k.endswith(("guided", "shift", "full"))])
def test_what_another_row_has_stored_changes_nothing_but_the_forwards(served, kind):
    generator, asked, alone = served(kind)
    pool = pool_of(generator)
    for again in range(2):
        for request, wanted in zip(asked, alone, strict=True):
            one = ticket(generator, request)
            pool.join(one)
            while pool.seats:
                pool.turn()
            found = results(one)[0]
            check_same(found, wanted)
            assert found.cached_tokens <= found.prompt_tokens
            if again and found.prompt_tokens > 33:
                assert found.cached_tokens >= 32
    assert pool._prefixes.nbytes > 0


def finish(pool):
    while pool.seats:
        pool.turn()


class Wrong:
    """An engine that goes wrong over a row whose first two tokens are 61, by an error or by NaN."""

    def __init__(self, engine, wrong):
        self.engine, self.wrong = engine, wrong

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        bad = np.flatnonzero((inputs.input_ids[:, :2] == 61).all(axis=1) & bool(self.wrong))
        if len(bad) and isinstance(self.wrong, BaseException):
            raise self.wrong
        said = self.engine.forward(inputs, cache, stores)
        arrays = {name: array.copy() for name, array in said.arrays().items()}
        for slot in bad:
            for array in arrays.values():
                if array.dtype.kind == "f":
                    array[slot] = np.nan
            for past in cache.past.values():
                past[slot] = np.nan
        return Outputs(**arrays)


@pytest.mark.parametrize("kind", ["full", "block", "context", "canvas", "block_guided"])
def test_a_row_of_nan_fails_alone_and_leaves_nothing(served, kind):
    generator, asked, alone = served(kind)
    engine = Wrong(generator.engine, None)
    made = Generator(engine, None)
    sick = replace(asked[0], prompt=(61, 61, *asked[0].prompt))  # no other row begins so
    pool = pool_of(made, prefix_bytes=0)
    for request, wanted in zip(asked[1:4], alone[1:4], strict=True):
        engine.wrong = "nan"
        bad, good = ticket(made, sick), ticket(made, request)
        pool.join(bad)
        if pool.batch.has_room(good.row):
            pool.join(good)
        while bad.row.number in pool.seats:
            assert pool.turn()
        (failed,) = [event for event in bad.told if isinstance(event, Failed)]
        assert bad.told[-1] is failed
        assert isinstance(failed.error, EngineError)
        assert "answered NaN" in failed.error.message
        with pytest.raises(EngineError, match="answered NaN"):
            bad.result(0)
        engine.wrong = None
        if not good.admitted:
            pool.join(good)
        later = ticket(made, request)  # sits where the other one sat
        if pool.batch.has_room(later.row):
            pool.join(later)
        finish(pool)
        check_same(results(good)[0], wanted)
        if later.admitted:
            check_same(results(later)[0], wanted)
    assert pool._counts.failed == {"EngineError": 3}


@pytest.mark.parametrize("error", [EngineError("it broke"), KeyError("what"), MemoryError()])
def test_a_forward_that_fails_ends_those_who_shared_it(served, error):
    generator, asked, _ = served("block")
    engine = Wrong(generator.engine, error)
    made = Generator(engine, None)
    pool = pool_of(made)
    long = replace(asked[0], prompt=(61, 61, *range(40)))  # prefills, in a forward of its own
    bad = ticket(made, long)
    good = ticket(made, replace(asked[1], prompt=(1, 2)))
    wanted = generator.run([replace(asked[1], prompt=(1, 2))])[0]
    pool.join(good)
    assert pool.turn()
    pool.join(bad)
    while bad.row.number in pool.seats:
        pool.turn()
    assert isinstance(bad.told[-1], Failed)
    if isinstance(error, EngineError):
        assert bad.told[-1].error is error
    else:
        assert "inside the engine" in bad.told[-1].error.message
        assert type(error).__name__ in bad.told[-1].error.message
    finish(pool)
    check_same(results(good)[0], wanted)
    assert pool._counts.failed == {"EngineError": 1}
    engine.wrong = None
    again = ticket(made, long)
    pool.join(again)
    finish(pool)
    check_same(results(again)[0], generator.run([long])[0])


def test_turn_tells_whether_the_engine_works(served, monkeypatch):
    generator, asked, _ = served("block")
    engine = Wrong(generator.engine, None)
    made = Generator(engine, None)
    pool = pool_of(made)
    pool.join(ticket(made, asked[0]))
    assert pool.turn() is True
    monkeypatch.setattr(engine, "forward", None)  # not even callable
    assert pool.turn() is False
    assert not pool.seats


def test_a_listener_that_raises_costs_its_own_request_alone(served):
    generator, asked, alone = served("block")
    pool = pool_of(generator)
    told = []

    def listener(event):
        told.append(event)
        raise KeyError("a defect")

    bad, good = ticket(generator, asked[0], listener), ticket(generator, asked[1])
    pool.join(bad)
    pool.join(good)
    while not told:
        assert pool.turn()
    assert bad.cancelled
    assert pool.drop(lambda one: one.cancelled) == [bad]
    finish(pool)
    check_same(results(good)[0], alone[1])
    assert pool._counts.failed == {}


def test_a_prefix_that_cannot_be_loaded_leaves_no_row_behind(served, monkeypatch):
    generator, asked, _ = served("block")
    pool = pool_of(generator)
    request = replace(asked[0], prompt=(*range(50),))
    one = ticket(generator, request)
    pool.join(one)
    finish(pool)

    def broken(row, saved):
        raise EngineError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(pool.batch.cache, "load", broken)
        with pytest.raises(EngineError, match="is gone"):
            pool.join(ticket(generator, request))
    assert (pool.seats, pool.batch.rows) == ({}, [])
    again = ticket(generator, request)
    pool.join(again)
    finish(pool)
    assert results(again)[0].tokens == results(one)[0].tokens
    assert results(again)[0].cached_tokens == 44  # the last whole block tells how the answer begins


def test_a_dropped_row_leaves_at_once(served):
    generator, asked, _ = served("block")
    pool = pool_of(generator)
    rows = [ticket(generator, request) for request in asked[:3]]
    for one in rows:
        pool.join(one)
    pool.turn()
    assert pool.drop(lambda one: one in rows[:2]) == rows[:2]
    assert [*pool.seats] == [rows[2].row.number]
    assert pool.batch.rows == [rows[2].row]


def test_forwards_are_counted(served):
    generator, asked, alone = served("block")
    pool = pool_of(generator, prefix_bytes=0)
    for request in asked[:4]:
        pool.join(ticket(generator, request))
    turns = 0
    while pool.seats:
        turns += pool.turn()
    counts = pool._counts
    assert sum(counts.forwards.values()) == turns
    assert counts.rows_fed == counts.row_forwards == sum(one.forwards for one in alone[:4])
    assert counts.rows_fed <= counts.slots_fed <= 4 * turns
    assert sum(counts.finished.values()) == 4
    assert counts.forward_seconds > 0
    kinds = {kind for name in counts.forwards for kind in name.split("+")}
    assert kinds == {"prefill", "denoise", "commit"}


def test_a_pair_counts_as_two_rows(manifest, scripted):
    facts = manifest(profiles=each((4, CONTEXT, 4), (16, CONTEXT, 1)), guided=True)
    generator = Generator(scripted(facts, SCRIPT), None)
    pool = pool_of(generator)
    one = ticket(generator, Request((7,), 3, SamplerConfig("sequential", guidance=1.5)))
    pool.join(one)
    finish(pool)
    counts = pool._counts
    assert counts.rows_fed == counts.slots_fed == 2 * results(one)[0].forwards


def test_a_long_prompt_and_the_others_take_turns(manifest, scripted):
    facts = manifest(profiles=each((4, CONTEXT, 4), (16, CONTEXT, 1)))
    engine = scripted(facts, SCRIPT)
    generator = Generator(engine, None)
    pool = pool_of(generator)

    def asked(prompt, count):
        sampler = SamplerConfig("sequential")
        return ticket(generator, Request(tuple(prompt), count, sampler))

    first = asked([7], 40)
    pool.join(first)
    pool.turn()
    second = asked([8] * 81, 3)
    pool.join(second)
    third = asked([9] * 5, 3)  # four of its tokens fit into the others' forwards
    pool.join(third)
    engine.calls.clear()
    while third.row.number in pool.seats or second.row.cached < 80:
        pool.turn()
    blocks = [profile.block for profile, _, _ in engine.calls]
    assert blocks == [16, 4, 16, 4, 16, 4, 16, 4, 16]
    assert second.row.forwards == 5
    assert third.row.finished
    finish(pool)
    assert results(second)[0].tokens == tuple(SCRIPT[(81 + np.arange(3)) % 60])


def test_rows_with_a_constraint_sit_among_the_others(torch_engine, codec):
    generator = Generator(torch_engine("block", profiles=BLOCKS), codec)
    patterns = [None, "[a-z ]{3,12}", "(yes|no|maybe)[.!]", "[0-9]{1,6}"]
    rng = np.random.default_rng(5)
    asked = []
    for index in range(7):
        pattern = patterns[index % 4]
        constraint = None if pattern is None else generator.constraints.regex(pattern)
        name = ("low_confidence_dynamic", "sequential", "low_confidence_static")[index % 3]
        asked.append(
            generator.request(
                rng.integers(0, 60, 1 + 5 * index).tolist(),
                max_new_tokens=16,
                sampler=SamplerConfig(name, temperature=0.8 * (index % 2)),
                seed=index,
                constraint=constraint,
                logprobs=2,
            )
        )
    alone = [generator.run([one])[0] for one in asked]
    pool, waiting, tickets = pool_of(generator), [*range(7)], {}
    while waiting or pool.seats:
        one = ticket(generator, asked[waiting[0]]) if waiting else None
        if one is not None and pool.batch.has_room(one.row):
            tickets[waiting.pop(0)] = one
            pool.join(one)
        assert pool.turn()
    for index, one in tickets.items():
        check_story(one)
        check_same(results(one)[0], alone[index])
        pattern = patterns[index % 4]
        assert pattern is None or re.fullmatch(pattern, results(one)[0].text)
