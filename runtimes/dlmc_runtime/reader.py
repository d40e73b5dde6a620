"""From a row's final tokens to text that only ever grows."""

from collections.abc import Iterator, Sequence

import numpy as np

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

    def _decode(self, tokens: Sequence[int]) -> str:
        if self.codec is None:
            return ""
        skip = self.row.request.skip_special_tokens
        return self.codec.decode(tokens, skip_special_tokens=skip)

    def _text(self, final: list[int]) -> str:
        ending = self.row.ending
        if ending is not None and ending.text is not None:
            return ending.text
        text = self._decode(final)
        if self.row.finished:
            return text
        text = text.rstrip(_INCOMPLETE)
        return text[: max(len(text) - self.held, 0)]

    def _result(self, final: list[int], seconds: float) -> Result:
        spans = self.row.spans()
        tokens = tuple(token for span in spans for token in span) if spans else tuple(final)
        holes = self.row.holes or [(self.row.answer_start, self.row.answer_start + len(final))]
        told = self.row.logprobs
        return Result(
            text=self.text,
            tokens=tokens,
            spans=tuple(map(self._decode, spans)) if self.codec else (),
            prompt_tokens=int(self.row.given.sum()),
            forwards=self.row.forwards,
            finish_reason=self._reason(tokens),
            seconds=seconds,
            tokens_per_forward=self.row.regime.tokens_per_forward(len(tokens)),
            cached_tokens=min(self.row.resumed, self.row.prompt_length),
            logprobs=tuple(told[p] for begin, end in holes for p in range(begin, end) if p in told),
        )

    def _reason(self, tokens: tuple[int, ...]) -> str:
        if self.row.forced:
            return "steps"
        if self.row.ending is not None or self.row.holes:
            return "stop"
        # A text that is whole was not cut, although no stop id found room behind it.
        kept = self.row.request.constraint
        whole = kept is not None and kept.completes(np.array(tokens, np.int64))
        return "stop" if whole else "length"
