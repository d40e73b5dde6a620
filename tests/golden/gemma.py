"""DiffusionGemma's exported graph, fed by hand: one row, its cache, and both phases."""

from typing import Any

import numpy as np

from dlmc_runtime import masks
from dlmc_runtime.blocks import Blocks
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.onnxruntime import open_session

CONTEXT = 128
Array = np.ndarray[Any, np.dtype[Any]]


class Graph:
    """The exported graph with logits, and a cache of one row."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, manifest = bundle, bundle.manifest
        self.session = open_session(bundle, manifest.graph)
        self.context = manifest.attention.sliding_context or 0
        self.cache = HostCache(manifest.model, 1, CONTEXT)
        self.hidden = manifest.model.hidden_size

    def feed(
        self,
        ids: Array,
        first: int,
        *,
        causal: bool,
        expected: Array | None = None,
        temperature: float = 0.0,
    ) -> tuple[Array, Array, list[Array]]:
        """Feed positions behind those that are stored; the first is at ``first`` in the rope.

        Returns:
            Logits [n,V], embeddings to expect [n,hidden], and keys and values layer by layer.
        """
        count, filled = len(ids), int(self.cache.filled[0])
        places = np.arange(filled, filled + count)
        among = masks.own("causal" if causal else "everyone", places, Blocks(1, 0, CONTEXT))
        ring = min(CONTEXT, self.context)
        whole, last = (np.zeros((count, size + count), bool) for size in (CONTEXT, ring))
        for mask in (whole, last):
            masks.fill(mask, among, filled)
        if causal:
            masks.trail(last, places, filled, self.context)
        names = ["logits", "next_self_conditioning"]
        names += [arg.name for arg in self.session.get_outputs() if "present" in arg.name]
        nothing = np.zeros((count, self.hidden), np.float32)
        feeds = {
            **self.cache.past,
            "input_ids": ids[None],
            "position_ids": places[None] - filled + first,
            "attention_mask": whole[None, None],
            "sliding_attention_mask": last[None, None],
            "self_conditioning": (nothing if expected is None else expected)[None],
            "denoising": np.array([not causal]),
            "head_rows": np.arange(count)[None],
            "temperature": np.array([temperature], np.float32),
            "uniform": np.zeros((1, count), np.float32),
        }
        taken = {arg.name for arg in self.session.get_inputs()}  # a mask for kinds of layers it has
        feeds = {name: value for name, value in feeds.items() if name in taken}
        logits, told, *present = self.session.run(names, feeds)
        if causal:
            self.cache.write(0, count, present, filled)
        return logits[0], told[0], present


def arrived(graph: Graph, number: int) -> Array:
    """Return what one of the caches holds of its row, [H,n,D], in the order of the positions."""
    past: Array = list(graph.cache.past.values())[number][0]
    held = masks.held(int(graph.cache.filled[0]), past.shape[1])
    order = np.argsort(held, kind="stable")
    return past[:, order][:, held[order] >= 0]
