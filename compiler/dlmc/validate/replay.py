"""Recorded states as files: for Polygraphy's own command line, and to compare with again."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pydantic

from dlmc.validate.recording import Arrays, Choice, Recording, State
from dlmc.validate.saved_arrays import read_inputs, read_outputs
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import Contents, cache_names
from dlmc_runtime.engines.base import (
    ADAPTER,
    GUIDANCE,
    PARTNER,
    SELF_CONDITIONING,
    SLIDING_MASK,
    Inputs,
    Outputs,
    Store,
    head_outputs,
    tensor_shape,
)
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Manifest, Profile, SamplerSpec, TensorSpec
from dlmc_runtime.masks import Own
from dlmc_runtime.record import Natural, Record, Sha256, TokenId
from dlmc_runtime.samplers.base import BlockState
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.task import Kind, Task

Run = Callable[[Arrays], Arrays]

INPUTS, OUTPUTS, STATES = "inputs.json", "outputs.json", "states.json"


class _Task(Record):
    kind: Kind
    start: Natural
    end: Natural
    head_start: Natural
    head_end: Natural
    own: Own
    visible: Natural
    hole: tuple[Natural, Natural]
    shift: Literal[0, 1]
    at: Natural
    kept: Natural
    shadow: tuple[Natural, Natural]
    adapter: bool


class _Store(Record):
    row: Natural
    count: Natural
    at: Natural | None


class _State(Record):
    prompt: Natural
    forward: Natural
    profile: Profile
    filled: tuple[Natural, ...]
    stores: tuple[_Store, ...]
    task: _Task
    canvas: tuple[TokenId, ...]
    masked: tuple[bool, ...]
    sampler: SamplerSpec | None
    step: Natural
    masks: Natural
    noise: tuple[float, ...] | None


class _States(Record):
    """``states.json``: what Polygraphy does not need and a comparison does."""

    schema_version: Literal[2] = 2
    manifest_sha256: Sha256
    starts: tuple[Natural, ...]
    answers: tuple[tuple[TokenId, ...], ...]
    states: tuple[_State, ...]


def save_states(recording: Recording, bundle: Bundle, name: str, run: Run, folder: Path) -> None:
    """Write the graph's inputs of every state, what the reference answers, and what it was for.

    ``polygraphy run denoiser.onnx --onnxrt --load-inputs inputs.json --load-outputs outputs.json``
    compares any runner that Polygraphy has with the reference.

    Args:
        recording: recorded forwards.
        bundle: the bundle they are of.
        name: of the reference.
        run: returns all outputs of the graph, ``present`` included, for its inputs.
        folder: where to write; made where it is missing.

    Raises:
        OSError: the folder cannot be written.
    """
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json
    from polygraphy.logger import G_LOGGER

    inputs = [state.feeds() for state in recording.states]
    results = RunResults()
    results.add([run(feeds) for feeds in inputs], runtime=0.0, runner_name=name)
    folder.mkdir(parents=True, exist_ok=True)
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):  # it would write to stdout
        save_json(inputs, str(folder / INPUTS), description="denoising states")
        results.save(str(folder / OUTPUTS))
    states = _States(
        manifest_sha256=bundle.manifest_sha256,
        starts=recording.starts,
        answers=recording.answers,
        states=tuple(_describe(state) for state in recording.states),
    )
    (folder / STATES).write_text(states.model_dump_json() + "\n", encoding="utf-8")


def _describe(state: State) -> _State:
    choice = state.choice
    sampler = None
    if choice is not None:
        options = asdict(choice.sampler)
        sampler = SamplerSpec(name=options.pop("name"), parameters=options)
    return _State(
        prompt=state.prompt,
        forward=state.forward,
        profile=state.inputs.profile,
        filled=tuple(state.past.filled.tolist()),
        stores=tuple(_Store(**asdict(store)) for store in state.stores),
        task=_Task(**asdict(state.task)),
        canvas=tuple(state.canvas.tolist()),
        masked=tuple(state.masked.tolist()),
        sampler=sampler,
        step=choice.block.step if choice else 0,
        masks=choice.block.masks if choice else 0,
        noise=tuple(choice.noise.tolist()) if choice and choice.noise is not None else None,
    )


def load_states(bundle: Bundle, outputs: Path) -> tuple[str, Recording]:
    """Read what `save_states` has written, without trusting it.

    Args:
        bundle: the bundle it must be of.
        outputs: its ``outputs.json``, or another run's on the same inputs; the other files lie
            beside it.

    Returns:
        The name of the runner that answered, and the recording.

    Raises:
        UsageError: a file is missing or odd, or of another bundle.
    """
    folder = outputs.parent
    described = _read_states(folder / STATES)
    if described.manifest_sha256 != bundle.manifest_sha256:
        _refuse(folder / STATES, "is of another bundle")
    name, answers = read_outputs(outputs)
    feeds = read_inputs(folder / INPUTS)
    if not len(feeds) == len(answers) == len(described.states):
        _refuse(outputs, "and the files beside it hold different numbers of forwards")
    reader = _Reader(bundle, folder)
    states = [reader.state(*each) for each in zip(described.states, feeds, answers, strict=True)]
    prompts = {state.prompt for state in states}
    if len(described.starts) != len(described.answers) or prompts != {*range(len(prompts))}:
        _refuse(folder / STATES, "does not fit itself")
    return name, Recording(tuple(states), described.answers, described.starts)


def _read_states(path: Path) -> _States:
    try:
        return _States.model_validate_json(path.read_bytes())
    except OSError as error:
        _refuse(path, f"cannot be read ({error.strerror})")
    except pydantic.ValidationError as error:
        place = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
        _refuse(path, f"holds no recorded states ({place[:80]})")


def _refuse(path: Path, what: str) -> NoReturn:
    raise UsageError(f"{path} {what}", "save it again with dlmc validate --save-states")


class _Reader:
    """Makes states of one bundle from arrays that nobody vouches for."""

    def __init__(self, bundle: Bundle, folder: Path) -> None:
        self._manifest, self._folder = bundle.manifest, folder

    def state(self, said: _State, feeds: Arrays, answers: Arrays) -> State:
        """Return one state.

        Raises:
            UsageError: an array has another type or shape than the graph's, or holds what no
                runtime would feed.
        """
        manifest, profile = self._manifest, said.profile
        given = {spec.name: self._array(feeds, spec, profile) for spec in manifest.inputs}
        if not self._plausible(said) or not _fits(given, said, manifest):
            _refuse(self._folder, f"holds what no runtime feeds, in forward {said.forward}")
        inputs = Inputs(profile, {name: array.shape for name, array in given.items()})
        for name, buffer in inputs.arrays().items():
            buffer[...] = given[name]
        used = max(said.filled)
        past = {name: given[name][:, :, :used] for name in cache_names(manifest.model)}
        specs = {spec.name: spec for spec in manifest.outputs}
        stores = tuple(Store(**store.model_dump()) for store in said.stores)
        kept = {}
        for count in (store.count for store in stores if store.row == 0):
            for name in cache_names(manifest.model):
                spec = specs[name.replace("past_key_values", "present")]
                first = max(count - given[name].shape[2], 0)  # a layer may keep the last ones only
                kept[name] = self._array(answers, spec, profile)[0, :, first:count]
        return State(
            prompt=said.prompt,
            forward=said.forward,
            inputs=inputs,
            past=Contents(past, np.array(said.filled, np.int64)),
            size=profile.cache,
            capacities={name: given[name].shape[2] for name in past},
            stores=stores,
            outputs=Outputs(
                *(self._array(answers, specs[k], profile) for k in head_outputs(manifest))
            ),
            kept=kept,
            task=Task(**said.task.model_dump()),
            canvas=np.array(said.canvas, np.int64),
            masked=np.array(said.masked, np.bool_),
            choice=_choice(said),
        )

    def _array(self, arrays: Arrays, spec: TensorSpec, profile: Profile) -> Any:
        found = arrays.get(spec.name)
        shape = tensor_shape(spec, profile, self._manifest.attention)
        if found is None or found.shape != shape or found.dtype.name != spec.dtype:
            _refuse(self._folder, f"holds no {spec.name} of the shape and type that the graph has")
        return found

    def _plausible(self, said: _State) -> bool:
        """Return whether what `states.json` says about a forward fits itself."""
        task, profile, longest = said.task, said.profile, len(said.canvas)
        asked = task.head_end - task.head_start
        return (
            task.start <= task.head_start < task.head_end <= task.end <= longest
            and task.end - task.start <= profile.block
            and asked <= profile.rows
            and longest == len(said.masked) <= 2 * self._manifest.model.max_position_embeddings
            and max(said.canvas) < self._manifest.model.vocab_size
            and len(said.filled) == profile.batch
            and max(said.filled) <= profile.cache
            and _can_be_stored(said)
            and (said.noise is None or len(said.noise) == asked)
        )


def _can_be_stored(said: _State) -> bool:
    """Return whether every row stores at most once, what it was fed, and inside of its cache."""
    rows, profile = [store.row for store in said.stores], said.profile
    if len(set(rows)) < len(rows) or max(rows, default=0) >= profile.batch:
        return False
    starts = [said.filled[one.row] if one.at is None else one.at for one in said.stores]
    return all(
        store.count <= profile.block and start + store.count <= profile.cache
        for store, start in zip(said.stores, starts, strict=True)
    )


def _fits(given: Arrays, said: _State, manifest: Manifest) -> bool:
    """Return whether no input would make an engine read outside of its tables."""
    longest = 2 * manifest.model.max_position_embeddings
    below = {
        "input_ids": manifest.model.vocab_size,
        "head_rows": said.profile.block,
        "position_ids": longest,
    }
    if PARTNER in given:
        below[PARTNER] = said.profile.batch
    inside = all(((given[k] >= 0) & (given[k] < end)).all() for k, end in below.items())
    uniform, temperature = given["uniform"], given["temperature"]
    drawn = ((uniform >= 0) & (uniform < 1)).all() and np.isfinite(temperature).all()
    masks = [given[name] for name in ("attention_mask", SLIDING_MASK) if name in given]
    nothing = np.zeros(1, np.float32)
    carried = given.get(SELF_CONDITIONING, nothing)
    return bool(
        inside
        and drawn
        and (temperature >= 0).all()
        and all(mask.any(-1).all() for mask in masks)
        and np.isfinite(given.get(GUIDANCE, nothing)).all()
        and np.isfinite(carried).all()
        and np.isin(given.get(ADAPTER, nothing), (0, 1)).all()
    )


def _choice(said: _State) -> Choice | None:
    if said.sampler is None:
        return None
    sampler = SamplerConfig().updated(**{**said.sampler.parameters, "name": said.sampler.name})
    masked = np.array(said.masked[said.task.head_start : said.task.head_end], np.bool_)
    noise = None if said.noise is None else np.array(said.noise)
    return Choice(sampler, BlockState(masked, said.step, said.masks), noise)
