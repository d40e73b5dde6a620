"""Fast-dLLM's approximate caches in torch, to compare an engine with (arXiv 2505.22618).

This is the fast form of NVlabs/Fast-dLLM's ``llada/generate.py``. Keys are cached after RoPE, where
the reference rotates all of them anew in every forward, and the block's own keys and values are
put beside those of the rest, where the reference scatters them among them: attention does not ask
for an order. Everything else is the reference's: the first forward of a block runs over the whole
canvas and hands all its logits to the sampler, the others run over the block (``dual``) or over the
block and what follows (``prefix``).
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from dlmc.bench.timing import Forward
from dlmc.bench.torch_loop import FullRow
from dlmc.denoiser.attention import KeyValue


class CachedRow(FullRow):
    """LLaDA with the cache ``prefix`` or ``dual``."""

    @torch.inference_mode()
    def steps(self) -> Iterator[Forward]:
        """Make one forward after the other until the row is done."""
        dual = self.config.cache == "dual"
        for start in range(self.prompt_length, self.answer_end, self.block_length):
            window = slice(start, min(start + self.block_length, self.answer_end))
            self.masks, step = window.stop - start, 0
            forward = self.denoise(0, self.answer_end, window, self.loop.empty(), step)
            yield replace(forward, kind="refresh")
            end = window.stop if dual else self.answer_end
            past = self._kept(start, end)
            while self.masked[window].any():
                if self.finished:
                    return
                step += 1
                yield self.denoise(start, end, window, past, step)
            if self.finished:
                return

    def _kept(self, start: int, end: int) -> list[KeyValue]:
        """Return the keys and values of every position but ``start`` to ``end``."""
        return [
            (
                torch.cat((keys[:, :, :start], keys[:, :, end:]), 2),
                torch.cat((values[:, :, :start], values[:, :, end:]), 2),
            )
            for keys, values in self.present
        ]
