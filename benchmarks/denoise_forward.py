"""One denoising forward over a cache of 512: engines, and torch's forward of the same network.

    python benchmarks/denoise_forward.py

Random SDAR-shaped models of about 130 M and 500 M weights, a vocabulary of 32,000, batch 1. Torch
runs in bfloat16 throughout and hands out the logits of every position, as the references do,
without any sampler; an engine reduces those of the rows it is asked for. Contestants take turns,
and ratios are those of each turn.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from dlmc.bench.isolated import Probe, Use
from dlmc.bench.machine import Watch, settle
from dlmc.bench.spread import Spread
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.manifest import Profile
from machine import Cell, Table, parser, report
from synthetic import SDAR_130M, SDAR_500M, Shape, build

if TYPE_CHECKING:
    import torch

SHAPES = {shape.name: shape for shape in (SDAR_130M, SDAR_500M)}
CACHE = 512
# T positions, R of them through the head: a block of its own, and a block inside a longer canvas.
BLOCKS = ((32, 32), (256, 256), (256, 32))
CONTESTANTS = ("openvino-cpu-bf16", "onnxruntime-cpu")
TORCH = "torch bfloat16"
COLUMNS = (
    "model",
    "block",
    "rows",
    "engine",
    "forwards",
    "ms (median)",
    "ms (p10)",
    "ms (p90)",
    "torch ms / ms",
    "lowest",
    "highest",
    "others %",
)


def torch_forward(bundle: Bundle, profile: Profile) -> Callable[[], object]:
    """Return torch's forward of a bundle over a cache: the logits of every position."""
    import torch

    from dlmc.bench.torch_loop import TorchLoop

    loop = TorchLoop.load(bundle, "bfloat16")
    config = loop.denoiser.config
    shape = (1, config.num_key_value_heads, profile.cache, config.head_dim)
    past = [
        (torch.randn(shape, dtype=torch.bfloat16), torch.randn(shape, dtype=torch.bfloat16))
        for _ in range(config.num_hidden_layers)
    ]
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 30000, (1, profile.block)))

    @torch.inference_mode()
    def forward() -> "torch.Tensor":
        return loop.logits(ids, profile.cache, past)[0]

    return forward


def rounds(
    contestants: dict[str, Callable[[], float]], repeats: int
) -> Iterator[dict[str, list[float]]]:
    """Let every contestant run about half a second in each turn; the first forward warms up."""
    counts = {name: 1 + max(1, int(0.5 / forward())) for name, forward in contestants.items()}
    for _ in range(repeats):
        turn = {}
        for name, forward in contestants.items():
            settle()
            turn[name] = [forward() for _ in range(counts[name])][1:]
        yield turn


def timed(forward: Callable[[], object]) -> Callable[[], float]:
    """Return a function that runs another and returns its seconds."""

    def run() -> float:
        began = time.perf_counter()
        forward()
        return time.perf_counter() - began

    return run


def measure(shape: Shape, block: int, rows: int, repeats: int) -> list[tuple[Cell, ...]]:
    """Build and time one shape; return a row per contestant."""
    options = ("--block", block, "--rows", rows, "--cache", CACHE, "--prefill", block)
    with shape.bundle("--block-length", str(rows), "--no-tokenizer") as root, ExitStack() as stack:
        for name in CONTESTANTS:
            build(root, name, *map(str, options))
        bundle = Bundle.open(root)
        use = Use("denoise", Profile(batch=1, block=block, cache=CACHE, rows=rows))
        contestants: dict[str, Callable[[], float]] = {}
        for name in CONTESTANTS:
            engine = engines.load(bundle, name)
            stack.callback(engine.close)
            contestants[name] = Probe(engine, use).seconds
        contestants[TORCH] = timed(torch_forward(bundle, use.profile))
        for forward in contestants.values():
            forward()
        with Watch() as watch:
            turns = list(rounds(contestants, repeats))
    found: list[tuple[Cell, ...]] = []
    for name in contestants:
        times = Spread.of(1e3 * one for turn in turns for one in turn[name])
        ratios = Spread.of(median(turn[TORCH]) / median(turn[name]) for turn in turns)
        cells = (shape.name, block, rows, name, times.n, times.median, times.p10, times.p90)
        highest = max(median(turn[TORCH]) / median(turn[name]) for turn in turns)
        others = 100 * (watch.noise.others or 0.0)
        found.append((*cells, ratios.median, ratios.minimum, highest, others))
    return found


def main() -> None:
    """Measure every shape and block and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--turns", type=int, default=5)
    arguments.add_argument("--model", choices=sorted(SHAPES), help="only this one")
    given = arguments.parse_args()
    rows = [
        row
        for name, shape in SHAPES.items()
        if given.model in (None, name)
        for block, head in BLOCKS
        for row in measure(shape, block, head, given.turns)
    ]
    report(Table("denoise_forward", COLUMNS, tuple(rows)), given.json)


if __name__ == "__main__":
    main()
