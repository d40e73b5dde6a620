"""Random models in the shapes of real ones, for benchmarks of speed and memory.

Checkpoints are kept in the user's cache, since writing their weights takes longest. Bundles and
engines are made anew, beside them, so that weights can be linked.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from machine import dlmc

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "dlmc", "benchmarks")


@dataclass(frozen=True)
class Shape:
    """A random model: a recipe, scaled.

    Attributes:
        name: what it is called in tables.
        recipe: whose keys and ratios it has.
        sizes: options of `dlmc synth`.
    """

    name: str
    recipe: str
    sizes: tuple[str, ...]

    def checkpoint(self) -> Path:
        """Return its checkpoint, written at first use."""
        path = CACHE / "-".join((self.name, *(size.strip("-") for size in self.sizes)))
        if not path.exists():
            dlmc("synth", self.recipe, "-o", path, *self.sizes)
        return path

    @contextmanager
    def bundle(self, *options: str) -> Iterator[Path]:
        """Export it with ``options`` into a bundle that disappears at the end."""
        checkpoint = self.checkpoint()
        folder = Path(tempfile.mkdtemp(prefix="bundle-", dir=CACHE))
        try:
            dlmc("export", checkpoint, "-o", folder / self.name, *options)
            yield folder / self.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sdar(name: str, layers: int, hidden: int) -> Shape:
    sizes = ("--layers", str(layers), "--hidden", str(hidden), "--vocab", "32000")
    return Shape(name, "sdar/sdar-1.7b-chat", (*sizes, "--positions", "1024"))


SDAR_130M = _sdar("sdar-130m", 15, 768)
SDAR_500M = _sdar("sdar-500m", 23, 1280)
LLADA_300M = Shape(
    "llada-300m",
    "llada/llada-8b-instruct",
    ("--layers", "14", "--hidden", "768", "--positions", "512"),
)
LLADA_SMALL_VOCABULARY = Shape(
    "llada-small-vocabulary",
    "llada/llada-8b-instruct",
    ("--layers", "17", "--hidden", "1024", "--vocab", "32000", "--positions", "512"),
)
DIFFUSION_GEMMA = Shape(
    "diffusion-gemma-450m",
    "diffusion_gemma/diffusiongemma-26b-a4b-it",
    (
        *("--layers", "12", "--hidden", "1024", "--heads", "8", "--head-dim", "64"),
        *("--experts", "16", "--top-k-experts", "4", "--expert-intermediate", "256"),
        *("--positions", "1024"),
    ),
)

ENGINES = {
    "onnxruntime-cpu": ("--target", "onnxruntime-cpu"),
    "onnxruntime-cpu-int8": ("--target", "onnxruntime-cpu", "--quantize", "int8"),
    "openvino-cpu-bf16": ("--target", "openvino-cpu", "--precision", "bf16"),
    "openvino-cpu": ("--target", "openvino-cpu"),
}
"""Engines that the benchmarks compare, and how they are built."""


def build(bundle: Path, engine: str, *options: str) -> None:
    """Build an engine without comparing it with the reference."""
    dlmc("build", bundle, *ENGINES[engine], *options, "--no-validate")
