from dataclasses import dataclass, field

import numpy as np
import pytest

from dlmc_runtime import decode
from dlmc_runtime.batch import Batch
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.base import Inputs, Outputs, input_shapes
from dlmc_runtime.events import Finished
from dlmc_runtime.manifest import Manifest, Profile
from dlmc_runtime.reader import Reader
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule

VOCAB, EOS, PAD, HIDDEN, CONTEXT = 64, 60, 61, 32, 6
NOISE = {"mask": None, "stop": (EOS,), "pad": PAD, "suppressed": ()}
_LAST = ("batch", 1, "block", "last_context")
EXTRAS = (
    {"name": "sliding_attention_mask", "dtype": "bool", "shape": _LAST},
    {"name": "self_conditioning", "dtype": "float32", "shape": ("batch", "block", HIDDEN)},
    {"name": "denoising", "dtype": "bool", "shape": ("batch",)},
)
TOLD = ({"name": "next_self_conditioning", "dtype": "float32", "shape": ("batch", "rows", HIDDEN)},)
SHAPES = tuple(Profile(batch=2, block=t, cache=32, rows=r) for t, r in ((4, 4), (5, 1)))


@dataclass
class Steps:
    """Says at its n-th forward of a canvas what a script says: best tokens and entropies."""

    manifest: Manifest
    best: list
    entropy: list
    fed: list = field(default_factory=list)

    @property
    def profiles(self):
        return self.manifest.profiles

    def cache(self, batch, size):
        return HostCache(self.manifest.model, batch, size)

    def inputs(self, profile):
        return Inputs(profile, input_shapes(self.manifest, profile))

    def forward(self, inputs, cache, stores):
        arrays = inputs.arrays() | {"stores": list(stores)}
        self.fed.append({k: v if k == "stores" else v.copy() for k, v in arrays.items()})
        for store in stores:
            cache.filled[store.row] += store.count
        shape = inputs.head_rows.shape
        best, entropy = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        number = sum(bool(one["denoising"][0]) for one in self.fed) - 1
        if inputs.denoising[0]:
            best[0] = self.best[number]
            entropy[0] = self.entropy[number]
        zeros = np.zeros(shape, np.float32)
        told = np.full((*shape, HIDDEN), number + 1.0, np.float32)
        drawn = best + 1
        return Outputs(
            best[..., None], zeros[..., None], zeros, zeros, zeros, entropy, drawn, zeros, told
        )

    def close(self):
        self.fed.clear()


class Counting:
    """Uniform numbers for the tokens 0, 1, 2, … of a vocabulary."""

    def __init__(self):
        self.given = []

    def random(self, size):
        first = sum(self.given)
        self.given.append(size)
        return (np.arange(first, first + size) % VOCAB + 0.5) / VOCAB


@pytest.fixture
def run(manifest):
    """Run a request over a script; return the row, its engine, its tasks and its canvases."""

    def go(best, entropy, count=4, prompt=(7,), stop=(), keep_cache=False, **options):
        made = manifest(
            "context",
            profiles=SHAPES,
            attention={
                "regime": "context",
                "block_length": 4,
                "aligned_to": "answer",
                "sliding_context": CONTEXT,
            },
            tokens=NOISE,
            inputs=EXTRAS,
            outputs=TOLD,
        )
        config = SamplerConfig("renoise", **{"confidence_threshold": 0.0, "steps": 2, **options})
        request = Request(
            tuple(prompt), count, config, stop=StopRule(frozenset(stop)), keep_cache=keep_cache
        )
        row = Row(request, made, Counting())
        engine = Steps(made, best, entropy)
        batch, tasks, events = Batch.of(engine, [row]), [], []
        while batch.active:
            tasks.append(row.task(batch.chunk))
            events.append(decode.step(batch))
        return row, engine, tasks, events

    return go


def spans(tasks):
    return [(task.kind, task.start, task.end, task.kept, task.own) for task in tasks]


SURE = [[0.0] * 4] * 20


def test_prompt_and_finished_canvases_are_stored_causally(run):
    best = [[10, 11, 12, 13], [10, 11, 12, 13], [20, 21, 22, 23], [24, 25, 26, 27]]
    row, engine, tasks, _ = run(best, SURE, count=7, prompt=range(30, 37))
    assert spans(tasks) == [
        ("prefill", 0, 5, 5, "causal"),
        ("prefill", 5, 7, 2, "causal"),
        ("denoise", 7, 11, 0, "everyone"),
        ("denoise", 7, 11, 0, "everyone"),
        ("commit", 7, 11, 4, "causal"),
        ("denoise", 11, 15, 0, "everyone"),
        ("denoise", 11, 15, 0, "everyone"),
    ]
    assert row.answer() == [10, 11, 12, 13, 24, 25, 26]  # the best of the last step, cut
    assert engine.fed[4]["input_ids"][0, :4].tolist() == [10, 11, 12, 13]
    assert [one["denoising"][0] for one in engine.fed] == [task.kind == "denoise" for task in tasks]
    assert [task.visible for task in tasks] == [0, 5, 7, 7, 7, 11, 11]


def test_what_is_not_kept_becomes_random_again(run):
    entropy = [[0.9, 0.0, 0.05, 0.8]] * 2
    row, engine, _, _ = run([[10, 11, 12, 13], [1, 2, 3, 4]], entropy)
    first, second = (one["input_ids"][0, :4].tolist() for one in engine.fed[1:])
    assert first == [0, 1, 2, 3]
    # Draws are one above the best; then 4 to 7 went to the draws, and 8 to 11 are noise.
    assert second == [8, 12, 13, 14]  # 0.0 + 0.05 before 0.8 are within 0.1
    assert row.uniforms.given == [4, 4, 4, 4, 4]  # a canvas, and twice a draw and noise
    np.testing.assert_allclose(engine.fed[1]["uniform"][0, :4], (np.arange(4, 8) + 0.5) / VOCAB)


def test_every_step_has_its_temperature_and_what_the_one_before_expected(run):
    steps = [[10, 11, 12, 13]] * 6
    _, engine, tasks, _ = run(steps, [[1.0] * 4] * 6, count=8, steps=3, t_min=0.0, t_max=0.9)
    heat = [round(float(one["temperature"][0]), 6) for one in engine.fed]
    assert heat == [0, 0.9, 0.6, 0.3, 0, 0.9, 0.6, 0.3]
    told = [one["self_conditioning"][0, 0, 0] for one in engine.fed]
    denoised = [t for t, task in zip(told, tasks, strict=True) if task.kind == "denoise"]
    assert denoised == [0, 1, 2, 0, 4, 5]  # a canvas begins with nothing


def test_a_canvas_that_settles_is_done_early(run):
    best = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 5], [9, 9, 9, 9]]
    row, _, tasks, _ = run(best, SURE, steps=20, confidence_threshold=0.01)
    assert len(tasks) == 1 + 3
    assert row.answer() == [1, 2, 3, 5]


def test_the_end_of_text_counts_when_the_canvas_is_final(run):
    best = [[EOS, 1, 2, 3], [5, EOS, 6, EOS], [7, 7, 7, 7]]
    row, _, tasks, events = run(best, SURE, count=8, stop=[EOS])
    assert len(tasks) == 3
    assert row.canvas[1:5].tolist() == [5, EOS, PAD, PAD]
    assert row.ending.tokens == 1
    assert all(event.masked.all() for event in events[1])


def test_without_stop_ids_nothing_is_padded(run):
    row, _, _, _ = run([[EOS, 1, 2, EOS]] * 4, SURE, count=8)
    assert row.answer() == [EOS, 1, 2, EOS] * 2


def test_keep_cache_stores_the_last_canvas_as_it_is_final(run):
    row, engine, tasks, _ = run([[5, EOS, 6, 7]] * 2, SURE, stop=[EOS], keep_cache=True)
    assert spans(tasks)[-1] == ("commit", 1, 5, 4, "causal")
    assert engine.fed[-1]["input_ids"][0, :4].tolist() == [5, EOS, PAD, PAD]
    assert row.finished


def test_nothing_is_final_before_its_canvas(run):
    _, _, _, events = run([[1, 2, 3, 4]] * 4, SURE, count=8)
    shown = [event for found in events for event in found]
    assert [event.masked.tolist() for event in shown] == [
        [True] * 8,
        [False] * 4 + [True] * 4,
        [False] * 4 + [True] * 4,
        [False] * 8,
    ]
    assert shown[0].canvas[:4].tolist() != [1, 2, 3, 4]
    assert (shown[0].start, shown[0].end, shown[2].start) == (0, 4, 4)


@pytest.mark.parametrize(
    ("count", "stop", "expected"),
    [(8, (), 8 / 4), (5, (), 8 / 4), (8, (3,), 3 / 2), (4, (4,), 4 / 2)],
)
def test_whole_canvases_count_over_the_forwards_that_denoise(run, count, stop, expected):
    row, _, _, _ = run([[1, 2, 3, 4]] * 4, SURE, count=count, stop=stop)
    (*_, finished) = Reader(row, None, 0).advance(1.0)
    assert isinstance(finished, Finished)
    assert finished.result.tokens_per_forward == expected


def test_a_sequence_may_begin_with_a_canvas(run):
    row, _, tasks, _ = run([[1, 2, 3, 4]] * 2, SURE, prompt=())
    assert [task.kind for task in tasks] == ["denoise", "denoise"]
    assert row.answer() == [1, 2, 3, 4]


def test_layers_that_keep_the_last_positions_have_a_mask_of_their_own(run):
    _, engine, tasks, _ = run([[1, 2, 3, 4]] * 2, SURE, prompt=range(9))
    first, second, denoised = (one["sliding_attention_mask"][0, 0] for one in engine.fed[:3])
    assert [task.end for task in tasks[:2]] == [5, 9]
    assert not first[:, :CONTEXT].any()
    # Positions 5 to 8 see six before themselves; slots 0 to 4 hold those of the first part.
    assert second[:4, :CONTEXT].astype(int).tolist() == [
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 0],
    ]
    assert denoised[:4].all()  # a canvas sees all they hold, however far away
    whole = engine.fed[2]["attention_mask"][0, 0]
    assert whole[:4, :9].all()
    assert not whole[:4, 9:32].any()


def test_padding_of_a_batch_denoises_nothing(run):
    _, engine, _, _ = run([[1, 2, 3, 4]] * 2, SURE)
    assert not any(one["denoising"][1] for one in engine.fed)
    assert not any(one["temperature"][1] for one in engine.fed)


def test_pieces_are_those_of_a_causal_cache(manifest):
    tokens = {"mask": None, "stop": (60,), "pad": 61, "suppressed": ()}
    row = Row(Request((7,) * 40, 4, SamplerConfig("renoise")), manifest("context", tokens=tokens))
    assert row.regime.prompt_end == 40
    assert [row.regime.piece_end(position) for position in (0, 31, 32, 40)] == [32, 32, 64, 64]
