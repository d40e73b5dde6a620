"""`dlmc run --watch`: the canvas while it denoises."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlmc.cli.console import harmless, note, on_terminal
from dlmc_runtime.events import Denoised, Event

if TYPE_CHECKING:
    from rich.text import Text

    from dlmc_runtime.text import TextCodec

MASK = "░"
EDGE = "│"
_UNFINISHED = "\ufffd"  # how a decoder shows the first bytes of a character
# Confidence below the first bound is shown in the first colour, and so on.
_COLOURS = ((0.5, "red"), (0.7, "yellow"), (0.9, "cyan"), (np.inf, "green"))
_KNOWN = "default"  # a position that was fixed in a forward nobody told us about


class Canvas:
    """What is known about the generated part of one row.

    Args:
        codec: makes text of tokens; without it ids are shown.
        noisy: whether undecided positions hold tokens to look at, and no masks.

    Attributes:
        ids: int64 [G], masked: bool [G], confidence: float64 [G] of each position when it was
            last predicted; NaN before.
        edges: where blocks begin.
    """

    def __init__(self, codec: "TextCodec | None", *, noisy: bool = False) -> None:
        self._codec, self._noisy = codec, noisy
        self.ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self.masked: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.confidence: NDArray[np.float64] = np.zeros(0)
        self.edges: set[int] = set()
        self.forward = 0

    def update(self, event: Denoised) -> None:
        """Take over what a forward has changed; what was fixed earlier keeps its confidence."""
        if len(self.confidence) != len(event.canvas):
            self.confidence = np.full(len(event.canvas), np.nan)
            self.masked = np.ones(len(event.canvas), np.bool_)
            self.ids = event.canvas
        first = max(event.start, 0)
        window = slice(first, event.end)
        latest = event.confidence[first - event.start :]
        changed = self.masked[window] | (self.ids[window] != event.canvas[window])
        self.confidence[window] = np.where(changed, latest, self.confidence[window])
        self.ids, self.masked, self.forward = event.canvas, event.masked, event.forward
        self.edges |= {first, event.end} - {0, len(event.canvas)}

    def spans(self) -> Iterator[tuple[str, str]]:
        """Yield pieces of text and their style, left to right."""
        begin = 0
        while begin < len(self.ids):
            if begin in self.edges:
                yield EDGE, "dim"
            if self.masked[begin]:
                seen = self._text(begin, begin + 1).replace(_UNFINISHED, "·")
                yield seen if self._noisy else MASK, "dim"
                begin += 1
                continue
            end = begin + 1
            text = self._text(begin, end)
            # The tokens of one character belong together, whatever their confidence.
            while text.endswith(_UNFINISHED) and end < len(self.ids) and not self.masked[end]:
                end += 1
                text = self._text(begin, end)
            yield text, self._colour(begin)
            begin = end

    def _text(self, begin: int, end: int) -> str:
        if self._codec is None:
            return f"{self.ids[begin]} "
        return harmless(self._codec.decode(self.ids[begin:end].tolist())) or "·"

    def _colour(self, position: int) -> str:
        confidence = self.confidence[position]
        return next((name for bound, name in _COLOURS if confidence < bound), _KNOWN)

    def summary(self) -> str:
        """Return the counters."""
        known = int((~self.masked).sum())
        rate = known / self.forward if self.forward else 0.0
        return (
            f"forward {self.forward}: {known} of {len(self.ids)} positions, "
            f"{rate:.2f} tokens per forward"
        )

    def line(self) -> str:
        """Return counters and canvas as one plain line."""
        text = "".join(piece for piece, _ in self.spans())
        return f"{self.summary()}: {text}".replace("\n", "⏎")

    def rendered(self) -> "Text":
        """Return counters and canvas in colour."""
        from rich.text import Text

        return Text.assemble((self.summary(), "bold"), "\n", *self.spans())


@contextmanager
def watching(
    codec: "TextCodec | None", *, noisy: bool = False
) -> Iterator[Callable[[Event], None]]:
    """Show the canvas live on a terminal, elsewhere one line per forward on stderr."""
    canvas = Canvas(codec, noisy=noisy)
    if not on_terminal():
        yield lambda event: _follow(canvas, event, lambda: note(canvas.line()))
        return
    from rich.live import Live

    with Live(transient=True, auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda event: _follow(
            canvas, event, lambda: live.update(canvas.rendered(), refresh=True)
        )


def _follow(canvas: Canvas, event: Event, show: Callable[[], object]) -> None:
    if isinstance(event, Denoised):
        canvas.update(event)
        show()
