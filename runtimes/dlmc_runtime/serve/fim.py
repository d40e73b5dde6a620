"""``/v1/fim/completions``: what belongs between a prefix and a suffix, or into named slots."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from dlmc_runtime.events import Result
from dlmc_runtime.serve import completions, errors, fields, prompts, slots, stream
from dlmc_runtime.serve.completions import Choice, Completion, Plan
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.jobs import Update, planned
from dlmc_runtime.serve.models import Served, Site
from dlmc_runtime.serve.slots import Filling, Slot
from dlmc_runtime.serve.strict import StrictRoute

PREFIX, SUFFIX = "prefix", "suffix"

TOKENS: tuple[tuple[tuple[str, str], ...], ...] = (
    # Qwen2.5-Coder, CodeGemma
    (("<|fim_prefix|>", PREFIX), ("<|fim_suffix|>", SUFFIX), ("<|fim_middle|>", "")),
    # StarCoder
    (("<fim_prefix>", PREFIX), ("<fim_suffix>", SUFFIX), ("<fim_middle>", "")),
    # SantaCoder
    (("<fim-prefix>", PREFIX), ("<fim-suffix>", SUFFIX), ("<fim-middle>", "")),
    # DeepSeek-Coder
    (("<｜fim▁begin｜>", PREFIX), ("<｜fim▁hole｜>", SUFFIX), ("<｜fim▁end｜>", "")),  # noqa: RUF001
    # Seed-Coder, and so Stable-DiffCoder: the suffix first
    (("<[fim-suffix]>", SUFFIX), ("<[fim-prefix]>", PREFIX), ("<[fim-middle]>", "")),
)
"""Special tokens that ask for a middle, each with what follows it; the first row a tokenizer has
counts."""

DEFAULT_LENGTH = 64  # tokens of a span whose length nobody states
_MIDDLE = "middle"


class FimBody(fields.Generation):
    """A request for a middle, or to fill a template."""

    prompt: str | None = Field(None, description="What comes before.")
    suffix: str | None = Field(None, description="What comes after.")
    template: str | None = Field(
        None,
        min_length=1,
        description='In place of both: "Dear <slot name=who max=8/>, …".',
    )

    @model_validator(mode="after")
    def _one(self) -> "FimBody":
        if (self.prompt is None) is (self.template is None):
            raise FieldError("prompt", "give either prompt or template")
        for name in ("suffix", "stop"):
            if self.template is not None and getattr(self, name) is not None:
                raise FieldError(name, f"{name} goes without a template")
        return self


class _Plan(Plan[FimBody]):
    """A middle, or a template filled."""

    unsaid = (*Plan.unsaid, "logprobs")

    def finished(self, index: int, text: str, result: Result, **more: Any) -> Choice:
        """Return the end of an answer, whose rest is ``text`` where it was generated."""
        if self.filling is not None:
            filled = self.filling.slots(result)
            text = self._filled(filled)
            if self.body.template is not None:
                more["slots"] = filled
        return super().finished(index, text, result, **more)

    def news(self, update: Update) -> str:
        """Return what an answer has gained; what fills spans is told at their end."""
        return update.text if self.filling is None else ""

    def _filled(self, filled: Mapping[str, str]) -> str:
        """Return the whole text of a template, or a middle up to the first stop text in it."""
        if self.filling is not None and self.body.template is not None:
            return self.filling.read.filled(filled)
        middle = filled[_MIDDLE]
        ends = [at for stop in fields.stops(self.body) if (at := middle.find(stop)) >= 0]
        return middle[: min(ends, default=len(middle))]


def _plan(served: Served, body: FimBody, site: Site) -> _Plan:
    """Check a request against its model. This tokenizes, so it is for a thread of its own."""
    fields.check_rows(1, body, site.settings)
    if body.template is not None:
        filling = slots.fill(served, body.template, body)
        return _Plan(body, served, filling.requests, filling)
    prompt, suffix = body.prompt or "", body.suffix or ""
    manifest = served.generator.manifest
    if suffix and manifest.attention.regime == "full":
        filling = _span(served, body, prompt, suffix)
        return _Plan(body, served, filling.requests, filling)
    ids = (
        _around(served, prompt, suffix)
        if suffix
        else prompts.plain(served.text, prompt, served.context)
    )
    most = fields.room(served, len(ids), body)
    config = fields.sampler(served, body)
    requests = []
    for seed in fields.seeds(body):
        with errors.blame("prompt"):
            request = served.generator.request(
                ids,
                max_new_tokens=most,
                sampler=config,
                seed=seed,
                stop=fields.stops(body),
                ignore_eos=fields.ignore_eos(body),
            )
        requests.append(request)
    return _Plan(body, served, requests)


def _span(served: Served, body: FimBody, prompt: str, suffix: str) -> Filling:
    """Return the requests that fill a span of masks between two texts."""
    around = [prompts.plain(served.text, text, served.context) for text in (prompt, suffix)]
    left = served.context - sum(map(len, around))
    if left < 1 or (body.max_tokens or 1) > left:
        raise FieldError(
            "prompt" if left < 1 else "max_tokens",
            f"prompt, suffix and what is between them exceed the context of {served.context}",
            "shorten them or ask for fewer tokens",
            code="context_length_exceeded",
        )
    length = body.max_tokens or min(DEFAULT_LENGTH, left)
    if length > slots.MAX_LENGTH:
        hint = f"ask for {slots.MAX_LENGTH} at most"
        raise FieldError("max_tokens", f"a span of {length} tokens is too long", hint)
    read = slots.combined([around[0], Slot(_MIDDLE, length), around[1]])
    return slots.filling(served, read, body, "prompt")


def _around(served: Served, prompt: str, suffix: str) -> list[int]:
    """Return a prompt that asks for a middle with the tokenizer's own tokens.

    Raises:
        FieldError: it has none.
    """
    codec = served.text
    row_of_tokens = next(
        (one for one in TOKENS if all(token in codec.added_tokens for token, _ in one)), None
    )
    if row_of_tokens is None:
        raise FieldError(
            "suffix",
            f"{served.name} sees nothing after the block it denoises, and its tokenizer has no "
            "tokens that ask for a middle",
            "use a model that sees the whole sequence, such as llada or dream",
        )
    texts = {PREFIX: prompt, SUFFIX: suffix, "": ""}
    ids: list[int] = []
    for token, what in row_of_tokens:
        ids += [codec.added_tokens[token], *prompts.plain(codec, texts[what], served.context)]
    return ids


router = APIRouter(route_class=StrictRoute, tags=["completions"])


@router.post(
    "/v1/fim/completions",
    response_model=Completion,
    responses={200: stream.DESCRIPTION, **errors.RESPONSES},
)
async def create_fim_completion(body: FimBody, http: Request) -> Response:
    """Fill in the middle, or the slots of a template."""
    served = Site.of(http).catalog.find(body.model)
    return await completions.answer(await planned(_plan, served, body, http), http)
