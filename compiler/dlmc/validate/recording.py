"""Recording the states a real generation goes through, to replay them on another engine."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime import decode, samplers
from dlmc_runtime.batch import Batch
from dlmc_runtime.cache import Cache, Contents, cache_shapes
from dlmc_runtime.engines.base import Engine, Inputs, Outputs, Store
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.prediction import candidates, predict
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.base import BlockState, Bools, Floats, Ints, Prediction
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.task import Task

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Choice:
    """What the sampler is asked after a forward, and everything it goes by but the outputs.

    Attributes:
        sampler: the row's sampler.
        block: where the block stands.
        noise: float64 [n], the uniform numbers of samplers that ask for them.
        edge: what the cache's last position said about the block's first, where that counts.
    """

    sampler: SamplerConfig
    block: BlockState
    noise: Floats | None = None
    edge: Outputs | None = None

    def predict(self, outputs: Outputs) -> Prediction:
        """Return what ``outputs`` predict for the ``n`` positions of the block, in row 0."""
        count = len(self.block.masked)
        kind, said = samplers.find(self.sampler.name), outputs.row(0, 0, count)
        if self.edge is not None:
            said = said.led_by(self.edge)
        # At temperature 0 nothing is drawn: the uniform numbers of the head do not matter.
        uniform = np.zeros(count, np.float32)
        # A broken engine answers anything.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            prediction = predict(said, self.sampler, kind, uniform)
        shadow = candidates(outputs.row(0, count, 2 * count)) if "shadow" in kind.needs else None
        return replace(prediction, noise=self.noise, shadow=shadow)

    def select(self, prediction: Prediction) -> Bools:
        """Return bool [n]: the positions that the sampler commits."""
        sampler = samplers.build(self.sampler)
        return sampler.select(sampler.adjust(prediction, self.block), self.block)


@dataclass(frozen=True)
class State:
    """One forward of row 0 in a batch: what went in, what the head said, what was stored.

    Attributes:
        prompt: which prompt, from 0.
        forward: which forward of that prompt, from 1.
        inputs: the graph's inputs, but for the cache.
        past: the committed positions of the cache before the forward; ``size`` is only theirs.
        size: positions the cache can hold.
        capacities: how many of them each layer keeps, by cache name.
        stores: what the forward writes to the cache.
        outputs: what the head said.
        kept: what row 0 stored, [H_kv,n,D] by cache name.
        task: what the forward was for.
        canvas: int64, all tokens of the row before the forward.
        masked: bool, which of them were not decided yet.
        choice: what the sampler was asked; None where the forward only stores.
    """

    prompt: int
    forward: int
    inputs: Inputs
    past: Contents
    size: int
    capacities: Mapping[str, int]
    stores: tuple[Store, ...]
    outputs: Outputs
    kept: Arrays
    task: Task
    canvas: Ints
    masked: Bools
    choice: Choice | None

    def feeds(self) -> Arrays:
        """Return all inputs of the bundle's graph by name."""
        return {**self.inputs.arrays(), **widened(self.past, self.capacities).past}

    def replay(self, engine: Engine) -> tuple[Outputs, Arrays]:
        """Run the same forward on another engine; return its outputs and what it stored."""
        cache = engine.cache(len(self.past.filled), self.size)
        cache.restore(widened(self.past, self.capacities))
        inputs = engine.inputs(self.inputs.profile)
        for name, array in inputs.arrays().items():
            array[...] = self.inputs.arrays()[name]
        # Copied, because an engine may hand out buffers that it fills again.
        outputs = deepcopy(engine.forward(inputs, cache, self.stores))
        return outputs, stored(cache.contents(), self.stores) if self.stores else {}


@dataclass(frozen=True)
class Recording:
    """What a reference did: every forward, and by prompt the answer and where it starts."""

    states: tuple[State, ...]
    answers: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]


class _Recorder:
    """Passes every call on to an engine and keeps what went through the last forward."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: tuple[Inputs, Contents, tuple[Store, ...], Outputs, Arrays] | None = None
        self._held: Contents | None = None

    @property
    def manifest(self) -> Manifest:
        return self.engine.manifest

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return self.engine.profiles

    def cache(self, batch: int, size: int) -> Cache:
        self._held = None
        return self.engine.cache(batch, size)

    def inputs(self, profile: Profile) -> Inputs:
        return self.engine.inputs(profile)

    def forward(self, inputs: Inputs, cache: Cache, stores: Sequence[Store]) -> Outputs:
        # The cache changes only where something is stored: states in between share one copy.
        before = trimmed(cache.contents()) if self._held is None else self._held
        outputs = self.engine.forward(inputs, cache, stores)
        self._held = trimmed(cache.contents()) if stores else before
        kept = stored(self._held, stores)
        self.seen = (deepcopy(inputs), before, tuple(stores), deepcopy(outputs), kept)
        return outputs

    def close(self) -> None:
        self.engine.close()


class _Uniforms:
    """A row's random numbers, of which the last are kept."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.default_rng(seed)
        self.last: Floats | None = None

    def random(self, size: int) -> Floats:
        self.last = self._source.random(size)
        return self.last


def record(engine: Engine, requests: Sequence[Request], forwards: int | None = None) -> Recording:
    """Generate from every request by itself and keep every forward.

    Args:
        engine: the reference.
        requests: at temperature 0.
        forwards: stop after so many in all; an answer that was begun by then stays unfinished.

    Raises:
        RequestError: a request fits no profile of the engine.
        EngineError: the engine fails.
    """
    recorder = _Recorder(engine)
    states: list[State] = []
    answers = []
    for prompt, request in enumerate(requests):
        uniforms = _Uniforms(request.seed)
        row = Row(request, engine.manifest, uniforms)
        batch = Batch.of(recorder, [row])
        while not row.finished and (forwards is None or len(states) < forwards):
            states.append(_step(batch, row, prompt, recorder, uniforms))
        answers.append(tuple(row.answer()))
    starts = tuple(len(request.prompt) for request in requests)
    return Recording(tuple(states), tuple(answers), starts)


def _step(batch: Batch, row: Row, prompt: int, recorder: _Recorder, uniforms: _Uniforms) -> State:
    task, canvas, masked = row.task(batch.chunk), row.canvas.copy(), row.masked.copy()
    block, edge = row.state(), row.leading(task)
    shapes = cache_shapes(recorder.manifest.model, batch.size, batch.context)
    decode.step(batch)
    if recorder.seen is None:
        raise RuntimeError("the step ran no forward")
    inputs, past, stores, outputs, kept = recorder.seen
    config = row.request.sampler
    noise = uniforms.last if "noise" in row.sampler.asks_for(config) else None
    decided = task.kind in ("denoise", "refresh")
    choice = Choice(config, block, noise, edge) if decided else None
    return State(
        prompt,
        row.forwards,
        inputs,
        past,
        batch.context,
        {name: shape[2] for name, shape in shapes.items()},
        stores,
        outputs,
        kept,
        task,
        canvas,
        masked,
        choice,
    )


def stored(cache: Contents, stores: Sequence[Store]) -> Arrays:
    """Return [H_kv,n,D] by cache name: the positions ``stores`` have just written to row 0."""
    found = {}
    for store in stores:
        if store.row == 0:
            end = int(cache.filled[0])  # wherever a store begins, its row ends with it
            for name, past in cache.past.items():
                kept = min(store.count, past.shape[2])
                slots = np.arange(end - kept, end) % max(past.shape[2], 1)
                found[name] = past[0][:, slots]
    return found


def trimmed(cache: Contents) -> Contents:
    """Return only the positions that hold something: a small part of a large cache."""
    used = int(cache.filled.max(initial=0))
    return Contents({k: v[:, :, :used].copy() for k, v in cache.past.items()}, cache.filled.copy())


def widened(cache: Contents, capacities: Mapping[str, int]) -> Contents:
    """Undo `trimmed`: return a whole cache, zero where nothing is committed."""
    past = {name: _widen(array, capacities[name]) for name, array in cache.past.items()}
    return Contents(past, cache.filled)


def _widen(past: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    wide = np.zeros((*past.shape[:2], size, past.shape[3]), np.float32)
    wide[:, :, : past.shape[2]] = past
    return wide
