import threading
from dataclasses import replace

import numpy as np
import pytest

from dlmc_runtime.errors import DeadlineError, EngineError, OverloadError, RequestError
from dlmc_runtime.events import Committed, Denoised, Failed, Finished
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.scheduler import Limits, Scheduler

SCRIPT = np.arange(60)
WAIT = 60.0


def shapes(*sizes):
    return tuple(Profile(batch=b, block=t, cache=c, rows=r) for b, t, c, r in sizes)


class Gate:
    """An engine that runs no forward until it is let."""

    def __init__(self, engine):
        self.engine, self.waiting, self.go = engine, threading.Event(), threading.Semaphore(0)
        self.open = False

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        self.waiting.set()
        if not self.open:
            assert self.go.acquire(timeout=WAIT)
        return self.engine.forward(inputs, cache, stores)

    def let(self, forwards=1):
        self.go.release(forwards)

    def release(self):
        self.open = True
        self.go.release(1000)


def nobody(event):
    pass


def the_same(result, alone):
    """Whether two results differ in nothing but what others did meanwhile."""
    return replace(
        result, seconds=0.0, cached_tokens=0, forwards=0, tokens_per_forward=0
    ) == replace(alone, seconds=0.0, cached_tokens=0, forwards=0, tokens_per_forward=0)


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
    with Scheduler(generator) as scheduler:
        tickets = [scheduler.submit(request, nobody) for request in asked]
        together = [ticket.result(WAIT) for ticket in tickets]
        counted = scheduler.statistics()
    for one, other in zip(together, alone, strict=True):
        assert the_same(one, other)
    assert counted.rows_fed / counted.slots_fed > 0.5
    assert sum(counted.finished.values()) == len(asked)
    assert counted.tokens == sum(len(one.tokens) for one in alone)
    assert counted.forward_seconds < counted.busy_seconds
