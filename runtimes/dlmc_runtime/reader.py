"""From a row's final tokens to text that only ever grows."""

from collections.abc import Iterator

from dlmc_runtime.events import Committed, Finished, Result
from dlmc_runtime.row import Row
from dlmc_runtime.text import TextCodec

_INCOMPLETE = "\ufffd"  # what a decoder writes for the first bytes of an unfinished character


class Reader:
    """Watches one row and reports what has become final since it last looked."""

    def __init__(self, row: Row, codec: TextCodec | None, index: int) -> None:
        self.row, self.codec, self.index = row, codec, index
        self.tokens = 0
        self.text = ""
        strings = row.request.stop.strings
        # A text's tail may be the start of a stop string: it waits until more is known.
        self.held = max((len(string) for string in strings), default=1) - 1
        self.done = False

    def advance(self, seconds: float) -> Iterator[Committed | Finished]:
        """Report new final tokens, and the result once the row has finished."""
        if self.done:
            return
        final = self._final()
        if len(final) > self.tokens or self.row.finished:
            tokens, added = tuple(final[self.tokens :]), self._text(final)[len(self.text) :]
            self.tokens, self.text = len(final), self.text + added
            if tokens or added:
                yield Committed(self.index, tokens, added)
        if self.row.finished:
            self.done = True
            yield Finished(self.index, self._result(final, seconds))

    def _final(self) -> list[int]:
        answer = self.row.answer()
        return answer if self.row.ending is None else answer[: self.row.ending.tokens]

    def _text(self, final: list[int]) -> str:
        if self.codec is None:
            return ""
        ending = self.row.ending
        if ending is not None and ending.text is not None:
            return ending.text
        text = self.codec.decode(final)
        if self.row.finished:
            return text
        text = text.rstrip(_INCOMPLETE)
        return text[: len(text) - self.held] if self.held else text

    def _result(self, final: list[int], seconds: float) -> Result:
        spans = self.row.spans()
        tokens = tuple(token for span in spans for token in span) if spans else tuple(final)
        return Result(
            text=self.text,
            tokens=tokens,
            spans=tuple(self.codec.decode(span) for span in spans) if self.codec else (),
            prompt_tokens=int(self.row.given.sum()),
            forwards=self.row.forwards,
            finish_reason=self._reason(),
            seconds=seconds,
            tokens_per_forward=self.row.regime.tokens_per_forward(len(tokens)),
        )

    def _reason(self) -> str:
        if self.row.forced:
            return "steps"
        ended = self.row.ending is not None or bool(self.row.holes)
        return "stop" if ended else "length"
