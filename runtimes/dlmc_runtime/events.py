"""What the denoising loop reports while it runs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlmc_runtime.errors import DlmcError


@dataclass(frozen=True)
class TokenLogprob:
    """How probable a token was in the forward that decided it, given the canvas of then.

    It is the model's own distribution, before temperature, filters and constraints. It is not the
    probability of the token given the tokens before it: others were decided in the same forward,
    and tokens behind it may have been decided earlier.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability; `UNLIKELY` where the graph does not say.
        forward: number of that forward among the row's, from 1.
        top: the most probable tokens and their log-probabilities, best first, as many as the
            request asks for.
    """

    token: int
    logprob: float
    forward: int
    top: tuple[tuple[int, float], ...]


UNLIKELY = -9999.0
"""Log-probability of a token outside what the graph tells about a position."""


@dataclass(frozen=True)
class Result:
    """What became of one prompt.

    Attributes:
        text: the generated text, without its special tokens unless the request asks for them;
            empty for a bundle without a tokenizer.
        tokens: generated ids up to, and without, the stop id; of a template those of its holes.
        prompt_tokens: number of prompt ids.
        forwards: engine runs this row took part in: prefill, denoise and commit.
        finish_reason: ``stop``, ``length``, or ``steps`` where a block still had masks at its
            limit of steps and was finished by the last of them.
        seconds: wall time from the first forward to the last of the call.
        tokens_per_forward: generated tokens over forwards (TPF); over those that denoise, and of
            whole canvases, where the family's reference counts that way.
        spans: the text in each hole of a template, whose ``text`` is all of it, filled.
        cached_tokens: prompt tokens whose keys and values came from an earlier request.
        logprobs: one for each of ``tokens``, where the request asks for them.
    """

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    forwards: int
    finish_reason: str
    seconds: float
    tokens_per_forward: float
    spans: tuple[str, ...] = ()
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over seconds."""
        return len(self.tokens) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Denoised:
    """A forward has changed a row's canvas.

    ``canvas`` int64 [G] holds the whole generated part, ``masked`` bool [G] what is still open;
    ``start`` and ``end`` bound the block just denoised, counted from the first generated position
    (``start`` is negative where the block begins with prompt tokens), and ``confidence`` float64
    [end - start] is the probability of each position's token in this forward.
    """

    row: int
    forward: int
    start: int
    end: int
    canvas: NDArray[np.int64]
    masked: NDArray[np.bool_]
    confidence: NDArray[np.float64]


@dataclass(frozen=True)
class Committed:
    """The next tokens of a row are final, and so is ``text``, which goes on where it last ended.

    The text may lag behind the tokens: the start of a character or of what may become a stop
    string waits for more. All ``text`` together is the result's.
    """

    row: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Finished:
    """A row is done."""

    row: int
    result: Result


@dataclass(frozen=True)
class Failed:
    """A row that shares forwards with others came to nothing; they go on."""

    row: int
    error: DlmcError


Event = Denoised | Committed | Finished | Failed
