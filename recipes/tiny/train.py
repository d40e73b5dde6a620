"""Train a tiny diffusion language model and write it as a Hugging Face checkpoint.

    python recipes/tiny/train.py llada --output artifacts/tiny-llada

LLaDA and SDAR learn masked diffusion on the answer only: each answer token is masked with a
probability drawn per row (LLaDA, arXiv 2502.09992) or per block (block diffusion, arXiv
2503.09573), and the loss is the mean cross-entropy over masked tokens. Both layouts learn
block-causally first, where one forward teaches every block of an answer; LLaDA is then adapted to
see the whole sequence. DiffusionGemma learns what `canvas` describes. Problems are drawn anew at
every step from a generator seeded by (seed, step), so that an interrupted run resumes exactly; only
the order of floating-point sums in the matrix library stands between two runs.
"""

import argparse
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import canvas
import vocabulary
from canvas import CanvasBatch, CanvasLoss
from checkpoint import read_spec, write_checkpoint
from dlmc.denoiser.denoiser import Denoiser
from dlmc.denoiser.network import Network, network
from dlmc.recipes import load
from tasks import TASKS, Problem, problems
from vocabulary import Encoded

BLOCK = 8
LEARNING_RATE = 4e-3
WARMUP = 100
DECAY = 0.3  # of all steps, at the end
ADAPT = 1000  # the step from which LLaDA sees the whole sequence
_WIDEST_CANVAS = 64


@dataclass(frozen=True)
class Batch:
    """One micro-batch; the loss is taken at the last ``targets.shape[1]`` positions.

    ``input_ids`` and ``position_ids`` are int64 [B,T], ``attention_mask`` bool [B,1,T,T],
    ``targets`` int64 [B,A] with -100 where no token is masked.
    """

    input_ids: Tensor
    position_ids: Tensor
    attention_mask: Tensor
    targets: Tensor


AnyBatch = Batch | CanvasBatch
Corrupt = Callable[[list[Encoded], int, int, np.random.Generator], AnyBatch]
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Phase:
    """A part of training: the step it begins at, its noise, and the problems of a step by task."""

    start: int
    corrupt: Corrupt
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Layout:
    """How one family is trained: the recipe with its shape, its tokens, its noise and its loss.

    ``steps`` is how many made the shipped checkpoint.
    """

    recipe: str
    vocabulary: vocabulary.Vocabulary
    phases: tuple[Phase, ...]
    steps: int
    initialise: Callable[[Any], None]
    loss: Callable[[Any], Loss]

    def phase_at(self, step: int) -> Phase:
        """Return the phase that ``step`` belongs to."""
        return [phase for phase in self.phases if phase.start <= step][-1]


def _noise(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Mask each entry with one probability per row, drawn from (0, 1)."""
    return rng.random(shape) < rng.random((*shape[:-1], 1))


def corrupt_sequence(
    encoded: list[Encoded], mask: int, pad: int, rng: np.random.Generator
) -> Batch:
    """Mask a LLaDA batch: every row sees the whole sequence.

    Half of the rows is masked anywhere. The others are masked as in semi-autoregressive decoding,
    clean blocks, one noisy block, then masks, and only the noisy block counts. One batch in four
    has a canvas longer than its answers. What follows the end of turn is all the same token and
    would drown the rest: a tenth of it counts. Prompts are left-padded and the padding hidden.
    """
    longest = max(len(row.answer) for row in encoded)
    canvas = -(-longest // BLOCK) * BLOCK
    if rng.random() < 0.25:
        canvas = int(rng.integers(canvas // BLOCK, _WIDEST_CANVAS // BLOCK + 1)) * BLOCK
    width = max(len(row.prompt) for row in encoded)
    ids = np.full((len(encoded), width + canvas), pad)
    visible = np.ones_like(ids, dtype=bool)
    positions = np.zeros_like(ids)
    for row, problem in enumerate(encoded):
        left = width - len(problem.prompt)
        ids[row, left : width + len(problem.answer)] = problem.prompt + problem.answer
        visible[row, :left] = False
        positions[row, left:] = np.arange(width + canvas - left)
    hidden = _noise((len(encoded), canvas), rng)
    counted = hidden.copy()
    for row in range(len(encoded) // 2):
        size = int(rng.choice((8, 16, 32)))
        start = int(rng.integers(-(-len(encoded[row].answer) // size))) * size
        hidden[row, :start] = counted[row, :start] = False
        hidden[row, start + size :], counted[row, start + size :] = True, False
    answer = ids[:, width:]
    counted &= (answer != pad) | (rng.random(hidden.shape) < 0.1)
    targets = np.where(counted, answer, -100)
    ids[:, width:] = np.where(hidden, mask, answer)
    allowed = np.broadcast_to(
        visible[:, None, None, :], (*visible.shape[:1], 1, *ids.shape[1:] * 2)
    )
    return Batch(*map(torch.from_numpy, (ids, positions, allowed.copy(), targets)))


def corrupt_blocks(encoded: list[Encoded], mask: int, pad: int, rng: np.random.Generator) -> Batch:
    """Mask an SDAR batch: clean sequence first, then noisy copies of the answer's blocks.

    A noisy block sees the clean blocks before it and itself; clean blocks are block-causal.
    """
    first = [len(row.prompt) // BLOCK for row in encoded]
    end = [-(-(len(row.prompt) + len(row.answer)) // BLOCK) for row in encoded]
    count = max(last - start for start, last in zip(first, end, strict=True))
    length = max(start + count for start in first) * BLOCK
    ids = np.full((len(encoded), length), pad)
    answered = np.zeros_like(ids, dtype=bool)
    for row, problem in enumerate(encoded):
        whole = problem.prompt + problem.answer
        ids[row, : len(whole)] = whole
        answered[row, len(problem.prompt) : end[row] * BLOCK] = True
    noisy_positions = np.array(first)[:, None] * BLOCK + np.arange(count * BLOCK)
    noisy = np.take_along_axis(ids, noisy_positions, 1)
    hidden = _noise((len(encoded), count, BLOCK), rng).reshape(noisy.shape)
    hidden &= np.take_along_axis(answered, noisy_positions, 1)
    positions = np.concatenate(
        (np.broadcast_to(np.arange(length), ids.shape), noisy_positions), axis=1
    )
    block = positions // BLOCK
    copy = np.arange(positions.shape[1]) >= length
    query, key = block[:, :, None], block[:, None, :]
    allowed = np.where(
        copy[None, None, :],
        copy[None, :, None] & (query == key),
        np.where(copy[None, :, None], key < query, key <= query),
    )
    return Batch(
        torch.from_numpy(np.concatenate((ids, np.where(hidden, mask, noisy)), axis=1)),
        torch.from_numpy(positions),
        torch.from_numpy(allowed[:, None]),
        torch.from_numpy(np.where(hidden, noisy, -100)),
    )


def initialise(denoiser: Denoiser) -> None:
    """Draw weights from a normal distribution, narrower where a residual branch ends."""
    depth = 2 * denoiser.config.num_hidden_layers
    for name, weight in denoiser.named_parameters():
        if weight.ndim == 2:
            scale = depth**-0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            std = 0.02 if "embed" in name or "lm_head" in name else weight.shape[1] ** -0.5
            torch.nn.init.normal_(weight, std=std * scale)


def loss_of(denoiser: Denoiser, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over the masked tokens of a batch."""
    config = denoiser.config
    rows, heads = batch.input_ids.shape[0], config.num_key_value_heads
    empty = torch.zeros(rows, heads, 0, config.head_dim)
    hidden, _ = denoiser(
        batch.input_ids,
        batch.position_ids,
        batch.attention_mask,
        [(empty, empty)] * config.num_hidden_layers,
    )
    logits = denoiser.logits(hidden[:, -batch.targets.shape[1] :])
    return functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())


def masked_loss(denoiser: Denoiser) -> Loss:
    """Return `loss_of` a denoiser, compiled."""
    return partial(torch.compile(loss_of, dynamic=True), denoiser)


def _each(rows: int) -> dict[str, int]:
    """Return the same number of problems for every task."""
    return dict.fromkeys(TASKS, rows)


LAYOUTS = {
    "llada": Layout(
        "tiny/tiny-llada",
        vocabulary.LLADA,
        phases=(
            Phase(0, corrupt_blocks, _each(24)),
            Phase(ADAPT, corrupt_sequence, _each(24)),
        ),
        steps=2600,
        initialise=initialise,
        loss=masked_loss,
    ),
    "sdar": Layout(
        "tiny/tiny-sdar",
        vocabulary.SDAR,
        phases=(Phase(0, corrupt_blocks, _each(24)),),
        steps=2400,
        initialise=initialise,
        loss=masked_loss,
    ),
    "gemma": Layout(
        "tiny/tiny-gemma",
        vocabulary.GEMMA,
        phases=(
            Phase(0, partial(canvas.corrupt_canvases, most_steps=1), _each(16)),
            Phase(400, partial(canvas.corrupt_canvases, most_steps=3), _each(16)),
            # Sums are the last to be learnt.
            Phase(
                750,
                partial(canvas.corrupt_canvases, most_steps=3),
                {"addition": 32, "sorting": 12, "facts": 8, "sudoku": 12},
            ),
        ),
        steps=1800,
        initialise=canvas.initialise,
        loss=CanvasLoss,
    ),
}


def split(whole: nn.Parameter) -> list[nn.Parameter]:
    """Return the matrices that a parameter is a stack of, sharing its values and gradients."""
    parts = [nn.Parameter(part) for part in whole.detach()]

    def share(grown: Tensor) -> None:
        for part, gradient in zip(parts, () if grown.grad is None else grown.grad, strict=True):
            part.grad = gradient

    whole.register_post_accumulate_grad_hook(share)
    return parts


def optimizers(denoiser: Network) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the stack, AdamW for embeddings, head, routers and norms."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in denoiser.named_parameters():
        if name.endswith("_proj"):
            matrices.extend(split(weight))
        else:
            (matrices if name.endswith("_proj.weight") else others).append(weight)
    return [
        torch.optim.Muon(
            matrices, lr=LEARNING_RATE, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def schedule(step: int, steps: int) -> float:
    """Return the factor on the learning rate: warm-up, plateau, linear decay."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY * steps))


class Source:
    """Batches of one layout, a pure function of the step."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout, self.seed = layout, seed
        self.tokenizer = layout.vocabulary.tokenizer()
        known = self.tokenizer.get_vocab()
        self.ids = {text: known[text] for text in layout.vocabulary.special}

    def encode(self, problem: Problem) -> Encoded:
        """Encode the rendered question, and the answer up to its end of turn."""
        names = self.layout.vocabulary
        prompt = self.tokenizer.encode(names.prompt(problem.question)).ids
        answer = self.tokenizer.encode(problem.answer + names.end_of_turn).ids
        return Encoded(prompt, answer)

    def batch(self, task: str, step: int) -> AnyBatch:
        """Draw the micro-batch of ``task`` at ``step``."""
        key = f"{self.seed}/{step}/{task}"
        drawn = problems(task, random.Random(key), held_out=False)  # noqa: S311
        phase = self.layout.phase_at(step)
        encoded = [self.encode(next(drawn)) for _ in range(phase.rows[task])]
        names = self.layout.vocabulary
        rng = np.random.default_rng([self.seed, step, list(TASKS).index(task)])
        noise = vocabulary.VOCAB_SIZE if names.mask is None else self.ids[names.mask]
        return phase.corrupt(encoded, noise, self.ids[names.pad], rng)


def train(layout: Layout, seed: int, steps: int, state_path: Path) -> Network:
    """Train for ``steps`` steps, resuming from ``state_path`` where it exists."""
    torch.manual_seed(seed)
    denoiser = network(read_spec(load(layout.recipe)).denoiser)
    layout.initialise(denoiser)
    optimizer = optimizers(denoiser)
    source, start = Source(layout, seed), 0
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        denoiser.load_state_dict(state["model"])
        for one, saved in zip(optimizer, state["optimizers"], strict=True):
            one.load_state_dict(saved)
        start = state["step"]
    loss_at = layout.loss(denoiser)
    began = time.monotonic()
    running: dict[str, float] = {}
    for step in range(start, steps):
        for one in optimizer:
            for group in one.param_groups:
                group["lr"] = LEARNING_RATE * schedule(step, steps)
        denoiser.zero_grad()
        rows = layout.phase_at(step).rows
        for task in TASKS:
            loss = loss_at(source.batch(task, step))
            (loss * rows[task] / sum(rows.values())).backward()
            running[task] = 0.98 * running.get(task, loss.item()) + 0.02 * loss.item()
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), 1.0)
        for one in optimizer:
            one.step()
        if (step + 1) % 25 == 0 or step + 1 == steps:
            losses = " ".join(f"{task} {value:.4f}" for task, value in running.items())
            print(f"step {step + 1} {time.monotonic() - began:.0f}s {losses}", flush=True)
            state = {"step": step + 1, "model": denoiser.state_dict()}
            state["optimizers"] = [one.state_dict() for one in optimizer]
            torch.save(state, state_path.with_suffix(".part"))
            state_path.with_suffix(".part").replace(state_path)
    return denoiser


def main() -> None:
    """Parse the command line, train, write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("--steps", type=int, help="default: as many as made the shipped one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state", type=Path, help="where to keep the state that a rerun resumes")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint folder to write")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    state = options.state or options.output.with_suffix(".state")
    state.parent.mkdir(parents=True, exist_ok=True)
    layout = LAYOUTS[options.layout]
    denoiser = train(layout, options.seed, options.steps or layout.steps, state)
    write_checkpoint(denoiser, load(layout.recipe), layout.vocabulary, options.output)
    print(f"wrote {options.output}, {sum(w.numel() for w in denoiser.parameters())} parameters")


if __name__ == "__main__":
    main()
