"""What a validation generates from."""

from dataclasses import dataclass

import numpy as np

from dlmc_runtime.batch import room
from dlmc_runtime.errors import RequestError
from dlmc_runtime.generate import Generator
from dlmc_runtime.options import Prompt
from dlmc_runtime.profiles import ProfileTable
from dlmc_runtime.row import Request, Row

_QUESTIONS = ("What is 12 + 7?", "Write the numbers 3 1 2 in order.")
_SIZES = (5, 12)  # of the arbitrary prompts of a bundle without a tokenizer


@dataclass(frozen=True)
class Wanted:
    """What to generate from, and how far.

    Attributes:
        prompts: by default short questions, or arbitrary ids for a bundle without a tokenizer.
        max_new_tokens: by default as many as fit, ``longest`` at most.
        longest: enough to cross several blocks.
        questions: how many of the default prompts.
        forwards: stop after so many forwards of all prompts together; None goes to the end.
    """

    prompts: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    longest: int = 64
    questions: int = len(_QUESTIONS)
    forwards: int | None = None


@dataclass(frozen=True)
class Asked:
    """A request, and how a reader recognises its prompt."""

    request: Request
    shown: str


def ask(generator: Generator, wanted: Wanted) -> list[Asked]:
    """Return requests at temperature 0 that generate to their full length.

    Args:
        generator: the engine that they must fit; any with its profiles.
        wanted: what to ask.

    Raises:
        RequestError: a prompt is too long for every profile.
    """
    manifest = generator.manifest
    given: list[Prompt] = list(wanted.prompts) or _defaults(generator)[: wanted.questions]
    limit = wanted.max_new_tokens
    sampler = generator.sampler.updated(temperature=0.0)
    asked = []
    for prompt in given:
        most = min(wanted.longest, manifest.max_new_tokens)
        tokens = _fitting(generator, prompt, most) if limit is None else limit
        request = generator.request(prompt, max_new_tokens=tokens, sampler=sampler, ignore_eos=True)
        asked.append(Asked(request, prompt if isinstance(prompt, str) else f"ids {prompt}"))
    return asked


def _defaults(generator: Generator) -> list[Prompt]:
    text, manifest = generator.text, generator.manifest
    if text is not None:
        return [
            text.chat([{"role": "user", "content": question}]) if text.has_template else question
            for question in _QUESTIONS
        ]
    draws = np.random.default_rng(0)
    allowed = np.setdiff1d(np.arange(manifest.model.vocab_size), manifest.tokens.suppressed)
    return [draws.choice(allowed, size).tolist() for size in _SIZES]


def _fitting(generator: Generator, prompt: Prompt, most: int) -> int:
    """Return how many tokens to generate, so that a profile takes prompt and answer."""
    table = ProfileTable(generator.profiles)
    tokens = most
    while True:
        try:
            request = generator.request(prompt, max_new_tokens=tokens)
            room(table, [Row(request, generator.manifest)])
        except RequestError:
            if tokens == 1:
                raise
            tokens //= 2
        else:
            return tokens
