"""One denoising step of a DiffusionGemma-shaped model: an engine, and transformers in torch.

    python benchmarks/diffusion_gemma.py

A network of about 0.45 B random weights (12 layers of 1024, 16 experts of which a token uses 4, a
vocabulary of 262,144) in bfloat16, a prompt of 128 tokens and one canvas of 256, with a fixed
number of steps: every position goes through the vocabulary at every step. Torch runs
`DiffusionGemmaForBlockDiffusion.generate` of transformers with its defaults. Both work in processes
of their own and take turns of a canvas; a step is timed from one forward to the next, sampler and
all. Memory is what a process grew by while it denoised, after its model was loaded, pages of files
not counted: torch's weights are in memory by then, and OpenVINO's, packed.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dlmc.bench.memory import kilobytes
from dlmc_runtime import Generator, SamplerConfig
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.events import Denoised
from machine import Cell, Table, parser, report
from synthetic import DIFFUSION_GEMMA, ENGINES, build

PROMPT, CANVAS, STEPS, ROUNDS = 128, 256, 16, 3
TORCH = "transformers"
COLUMNS = (
    "contestant",
    "steps",
    "tokens per forward",
    "seconds a step (median)",
    "lowest",
    "highest",
    "peak MB of a step",
    "share of rows x vocabulary x 4 bytes",
    "engine faster by",
)


def prompt(vocab_size: int) -> list[int]:
    """Return the prompt of everyone."""
    ids: list[int] = np.random.default_rng(0).integers(1000, vocab_size - 1000, PROMPT).tolist()
    return ids


def engine(root: str, name: str) -> Callable[[], list[float]]:
    """Load an engine; return what denoises one canvas and tells when each step ended."""
    generator = Generator.of(Bundle.open(Path(root)), name)
    ids = prompt(generator.manifest.model.vocab_size)
    sampler = SamplerConfig("renoise", steps=STEPS, confidence_threshold=0.0)

    def canvas() -> list[float]:
        events = generator.stream(ids, max_new_tokens=CANVAS, sampler=sampler, ignore_eos=True)
        return [time.perf_counter() for event in events if isinstance(event, Denoised)]

    return canvas


def transformers(checkpoint: str, threads: int) -> Callable[[], list[float]]:
    """Load transformers' model in bfloat16; as `engine`."""
    import torch
    from transformers import (  # noqa: TID251  (what is compared with)
        DiffusionGemmaForBlockDiffusion,
        EntropyBoundSamplerConfig,
    )

    torch.set_num_threads(threads)
    model: Any = DiffusionGemmaForBlockDiffusion.from_pretrained(checkpoint, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt(model.config.text_config.vocab_size)])
    ends: list[float] = []

    def note(*_: Any) -> None:
        ends.append(time.perf_counter())

    model.model.decoder.register_forward_pre_hook(note)  # a step ends where the next one begins

    def canvas() -> list[float]:
        ends.clear()
        options: dict[str, Any] = {"confidence_threshold": None}
        bound = EntropyBoundSamplerConfig(0.1)
        with torch.inference_mode():
            model.generate(
                ids,
                max_new_tokens=CANVAS,
                max_denoising_steps=STEPS,
                sampler_config=bound,
                disable_compile=True,
                **options,
            )
        return [*ends[1:], time.perf_counter()]

    return canvas


def serve(load: Callable[[], Callable[[], list[float]]]) -> None:
    """Answer every line on stdin with the seconds of each step of a canvas, and the memory."""
    canvas = load()
    before = _anonymous()
    print("ready", flush=True)
    for _ in sys.stdin:
        peak, done = [0], threading.Event()

        def watch(peak: list[int] = peak, done: threading.Event = done) -> None:
            while not done.wait(0.005):
                peak[0] = max(peak[0], _anonymous())

        watcher = threading.Thread(target=watch)
        watcher.start()
        ends = canvas()
        done.set()
        watcher.join()
        seconds = np.diff(ends).tolist()
        print(json.dumps({"seconds": seconds, "bytes": peak[0] - before}), flush=True)


def _anonymous() -> int:
    return kilobytes(Path("/proc/self/status").read_text(encoding="utf-8"), "RssAnon")


class Child:
    """A contestant in a process of its own."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.bytes = 0
        command = [sys.executable, __file__, "--serve", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError("the process has no output")
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended without an answer")
        return line

    def turn(self, *, counted: bool) -> None:
        """Denoise one canvas."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no input")
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._answer())
        self.bytes = max(self.bytes, found["bytes"])
        if counted:
            self.seconds += found["seconds"]

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def row(child: Child, first: Child, rows: int) -> tuple[Cell, ...]:
    """Describe one contestant."""
    logits = CANVAS * rows * 4
    return (
        child.name,
        STEPS,
        CANVAS / STEPS,
        median(child.seconds),
        min(child.seconds),
        max(child.seconds),
        child.bytes / 1e6,
        child.bytes / logits,
        median(child.seconds) / median(first.seconds),
    )


def main() -> None:
    """Race and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--engine", choices=tuple(ENGINES), default="openvino-cpu-bf16")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument(
        "--serve", nargs=2, metavar=("WHAT", "NAME"), help="of the program's own"
    )
    given = arguments.parse_args()
    if given.serve is not None:
        where, name = given.serve
        serve(lambda: transformers(where, given.threads) if name == TORCH else engine(where, name))
        return
    checkpoint = DIFFUSION_GEMMA.checkpoint()
    with DIFFUSION_GEMMA.bundle() as root:
        # One shape: OpenVINO plans its memory ahead then, and the prompt fits into it.
        shape = ("--block", str(CANVAS), "--rows", str(CANVAS), "--cache", str(PROMPT))
        build(root, given.engine, *shape, "--prefill", "0")
        vocab_size = Bundle.open(root).manifest.model.vocab_size
        field = [
            Child(given.engine, str(root), given.engine),
            Child(f"{TORCH} bfloat16", str(checkpoint), TORCH),
        ]
        for turn in range(ROUNDS + 1):
            for child in field:
                child.turn(counted=turn > 0)
        for child in field:
            child.close()
    rows = tuple(row(child, field[0], vocab_size) for child in field)
    report(Table("diffusion_gemma", COLUMNS, rows), given.json)


if __name__ == "__main__":
    main()
