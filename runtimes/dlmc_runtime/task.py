"""What a row needs from the next forward."""

from dataclasses import dataclass
from typing import Literal

from dlmc_runtime.masks import Own

Kind = Literal["prefill", "refresh", "denoise", "commit", "verify"]


@dataclass(frozen=True)
class Task:
    """Positions ``start`` to ``end`` are fed, and positions ``head_start`` to ``head_end`` read.

    Attributes:
        kind: ``prefill`` stores the prompt, ``commit`` a finished block; ``refresh`` is a whole
            forward that denoises and renews an approximate cache; ``denoise`` only denoises, but
            may leave its block in the cache for the next ones; ``verify`` is a causal forward
            that checks a draft and stores it.
        start: first position fed.
        end: one past the last position fed.
        head_start: first position whose prediction is read.
        head_end: one past the last of them.
        own: who sees whom among the positions fed.
        visible: cache entries that all of them see, from the front.
        hole: entries among those that are hidden, because the positions fed stand for themselves.
        shift: 1 where the logits of position p - 1 predict position p.
        at: where the cache keeps the first ``kept`` positions fed.
        kept: how many of them; 0 where nothing is stored.
        shadow: positions fed a second time, as masks that do not see their own token.
        adapter: whether the low-rank adapter takes part.
    """

    kind: Kind
    start: int
    end: int
    head_start: int
    head_end: int
    own: Own = "everyone"
    visible: int = 0
    hole: tuple[int, int] = (0, 0)
    shift: int = 0
    at: int = 0
    kept: int = 0
    shadow: tuple[int, int] = (0, 0)
    adapter: bool = False

    @property
    def fed(self) -> int:
        """Positions of the graph's block that this fills."""
        return self.end - self.start + self.shadow[1] - self.shadow[0]

    @property
    def read(self) -> int:
        """Rows that go through the vocabulary head."""
        return self.head_end - self.head_start + self.shadow[1] - self.shadow[0]
