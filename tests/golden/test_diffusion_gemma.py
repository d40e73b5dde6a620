"""DiffusionGemma's recorded runs, through export, build and the runtime: step by step.

The reference draws tokens where dlmc draws uniform numbers: the numbers here are those that give
the recorded tokens. It pads batches on the left, and rows that are done wait for the others: here
prompts come without padding, and a row takes part in its own steps only.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cases
import numpy as np
import pytest
from safetensors.numpy import load_file

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import decode, engines, legal
from dlmc_runtime.batch import Batch
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.events import Finished
from dlmc_runtime.reader import Reader
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.samplers.renoise import Renoise
from dlmc_runtime.stop import StopRule

PACKS = cases.packs_of("DiffusionGemmaForBlockDiffusion")
# The pack suggests 1e-4 for what is no logit.
ATOL = 1e-4
CONTEXT, CHUNKS = 128, (16, 64)


def runs():
    """Yield the recorded runs of every pack, as pytest's parameters."""
    for pack in PACKS:
        index = json.loads((pack / "samplers.json").read_text())
        arrays = load_file(pack / "samplers.safetensors")
        every = {case["name"]: case for case in index["cases"]}
        for name, case in every.items():
            before = every.get(case.get("continues_from", ""))
            yield pytest.param(Run(pack, case, arrays, before), id=f"{pack.name}/{name}")


@dataclass
class Run:
    """One recorded call of `generate`: arrays by step, row and position."""

    pack: Any
    case: dict[str, Any]
    arrays: dict[str, np.ndarray]
    before: dict[str, Any] | None

    def __getitem__(self, name):
        return self.arrays[f"{self.case['name']}/{name}"]

    @property
    def rows(self) -> int:
        return int(self.case["batch"])

    def prompt(self, row):
        """Return a row's prompt; the whole history where the reference kept a cache of it."""
        prompt = self["prompt"][row]
        if self.case["left_padded"]:
            prompt = prompt[self["attention_mask"][row] == 1]
        cached = [] if self.before is None else self.before["sequences"][row]
        length = self["init_canvas"].shape[-1]
        assert cached[-length:] == prompt[: len(cached[-length:])].tolist()
        return (*cached[:-length], *prompt.tolist())

    def live(self, row) -> list[list[int]]:
        """Return the steps of each canvas that a row takes part in."""
        found = []
        for canvas in range(len(self["committed"])):
            if canvas and self["finished_sequences"][canvas - 1, row]:
                break
            own = self["canvas_index"] == canvas
            found.append(np.flatnonzero(own & (self["finished_before"][:, row] == 0)).tolist())
        return found

    def first_canvas(self, canvas, row):
        """Return the tokens that a canvas begins with."""
        given = f"{self.case['name']}/given_canvas" in self.arrays and canvas == 0
        return self["given_canvas"][row] if given else self["init_canvas"][canvas, row]

    def uniforms(self, row) -> Iterator[np.ndarray]:
        """Yield the numbers of a row in the order in which it draws them."""
        size = self["raw_logits"].shape[-1]
        for canvas, steps in enumerate(self.live(row)):
            yield (self.first_canvas(canvas, row) + 0.5) / size
            for step in steps:
                logits = self["raw_logits"][step, row].astype(np.float64)
                yield middle(logits / self["temperature"][step], self["sampled_canvas"][step, row])
                yield (self["renoise"][step, row] + 0.5) / size

    def request(self, row) -> Request:
        stated = self.case["generation"]
        count = stated["max_new_tokens"]
        if stated["max_length"] is not None and count == 256:  # the reference's rule
            count = stated["max_length"] - len(self.prompt(row))
        names = ("entropy_bound", "t_min", "t_max", "stability_threshold")
        config = SamplerConfig(
            "renoise",
            steps=stated["max_denoising_steps"],
            confidence_threshold=stated["confidence_threshold"] or 0.0,
            **{name: stated[name] for name in names},
        )
        stop = StopRule(frozenset(stated["eos_token_id"] or ()))
        return Request(self.prompt(row), count, config, stop=stop)


def middle(logits, tokens):
    """Return the middle of what a cumulative distribution gives to each token, [n]."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    ends = np.cumsum(weights / weights.sum(-1, keepdims=True), axis=-1)
    edges = np.concatenate((np.zeros((len(ends), 1)), ends), axis=-1)
    pick = tokens[:, None]
    both = np.take_along_axis(edges, pick, 1) + np.take_along_axis(edges, pick + 1, 1)
    return both[:, 0] / 2


@dataclass
class Numbers:
    """Uniform numbers that were known before."""

    known: Iterator[np.ndarray]

    def random(self, size: int) -> np.ndarray:
        found = next(self.known)
        assert len(found) == size
        return found


@dataclass
class Step:
    """What a row saw and decided in one forward."""

    canvas_in: np.ndarray
    canvas_out: np.ndarray
    best: np.ndarray
    drawn: np.ndarray
    entropy: np.ndarray
    kept: np.ndarray
    temperature: float
    settled: bool
    final: bool


@dataclass
class Watched:
    """Notes the steps of a row, canvas by canvas."""

    row: Row
    canvases: list[list[Step]] = field(default_factory=list)

    def __post_init__(self):
        self.done = self.row.done
        self.row.done = self.note  # type: ignore[method-assign]

    def note(self, task, prediction, said):
        row = self.row
        if task.kind != "denoise":
            self.done(task, prediction, said)
            return
        if row.step == 0:
            self.canvases.append([])
            self.judge = Renoise(row.request.sampler)
        window = slice(task.start, task.end)
        sampler = row.sampler
        assert isinstance(sampler, Renoise)
        before, temperature = row.canvas[window].copy(), row.regime.temperature(task)
        kept = sampler.select(prediction, row.state())
        settled = self.judge.settled(said.top_ids[:, 0], prediction.entropy)
        self.done(task, prediction, said)
        self.canvases[-1].append(
            Step(
                before,
                row.canvas[window].copy(),
                said.top_ids[:, 0].copy(),
                prediction.tokens.copy(),
                prediction.entropy.copy(),
                kept,
                temperature,
                settled,
                not row.masked[window].any(),
            )
        )


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function that exports a pack and loads an engine with prefills of some size."""
    made: dict[Any, Any] = {}

    def load(pack, chunk):
        if pack not in made:
            output = tmp_path_factory.mktemp("golden") / pack.name
            made[pack] = export_checkpoint(
                ExportOptions(source=str(pack), output=output, tokenizer=False)
            )
        if (pack, chunk) not in made:
            wanted = ProfileRequest(batch=(1, 3), block=16, cache=CONTEXT, prefill=chunk)
            build_engine(plan_build(made[pack], "onnxruntime-cpu", wanted))
            made[pack, chunk] = engines.load(Bundle.open(made[pack]), "onnxruntime-cpu")
        return made[pack, chunk]

    return load


def follow(engine, run):
    """Run the rows of a recorded run in one batch, and return what they did."""
    rows = []
    for index in range(run.rows):
        request = run.request(index)
        legal.check(request.sampler, engine.manifest)
        rows.append(Row(request, engine.manifest, Numbers(run.uniforms(index))))
    watched = [Watched(row) for row in rows]
    batch = Batch.of(engine, rows)
    while batch.active:
        decode.step(batch)
    return watched


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("run", list(runs()))
def test_recorded_run(loaded, run, chunk):
    engine = loaded(run.pack, chunk)
    for index, seen in enumerate(follow(engine, run)):
        live = run.live(index)
        assert [len(steps) for steps in seen.canvases] == [len(steps) for steps in live]
        for canvas, (steps, numbers) in enumerate(zip(seen.canvases, live, strict=True)):
            for step, number in zip(steps, numbers, strict=True):
                compare(step, run, number, index)
            assert steps[-1].best.tolist() == run["committed"][canvas, index].tolist()
            assert steps[-1].canvas_out.tolist() == run["finalized"][canvas, index].tolist()
        compare_end(seen.row, run, index)


def compare(step, run, number, row):
    """Compare one step with the recorded one."""

    def recorded(name):
        return run[name][number, row]

    where = f"step {number} of row {row}"
    assert step.canvas_in.tolist() == recorded("canvas_in").tolist(), where
    assert step.temperature == run["temperature"][number], where
    np.testing.assert_allclose(step.entropy, recorded("entropy"), rtol=0, atol=ATOL, err_msg=where)
    assert step.best.tolist() == recorded("argmax_raw").tolist(), where
    assert step.drawn.tolist() == recorded("sampled_canvas").tolist(), where
    assert step.kept.tolist() == recorded("accepted").astype(bool).tolist(), where
    assert step.settled == recorded("finished_after").astype(bool), where
    assert step.final == (step.settled or run["step_remaining"][number] == 1), where
    if not step.final:
        assert step.canvas_out.tolist() == recorded("canvas_out").tolist(), where


def compare_end(row, run, index):
    """Compare what a row ends with."""
    assert next(row.uniforms.known, None) is None  # it drew all numbers
    new = run["sequences"][index, run["prompt"].shape[1] :]
    final = row.canvas[row.prompt_length : row.known]
    assert final.tolist() == new[: len(final)].tolist()
    assert (new[len(final) :] == row.tokens.pad).all()  # canvases of the rows beside it
    (*_, finished) = Reader(row, None, 0).advance(1.0)
    assert isinstance(finished, Finished)
    assert finished.result.tokens_per_forward == pytest.approx(
        run["tokens_per_forward"][index], rel=1e-6
    )


def test_every_pack_has_runs():
    assert PACKS
    for pack in PACKS:
        assert json.loads((pack / "samplers.json").read_text())["cases"]
        assert json.loads((pack / "denoiser.json").read_text())["cases"]
