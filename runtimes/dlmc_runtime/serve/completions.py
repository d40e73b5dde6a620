"""``/v1/completions``: texts continued, or templates filled."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from dlmc_runtime import row
from dlmc_runtime.events import Result, TokenLogprob
from dlmc_runtime.serve import answers, errors, fields, slots, stream
from dlmc_runtime.serve.answers import Answer, Usage
from dlmc_runtime.serve.jobs import Run, Update, begun, planned
from dlmc_runtime.serve.models import Served, Site
from dlmc_runtime.serve.prompts import within
from dlmc_runtime.serve.strict import StrictRoute

Text = Annotated[str, Field(min_length=1)]
# Every member of the union reads a prompt: one that it does not fit ends at its first item.
Ids = Annotated[list[fields.TokenId], Field(min_length=1, fail_fast=True)]
Prompts = (
    Text
    | Annotated[list[Text], Field(min_length=1, fail_fast=True)]
    | Ids
    | Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
)


class CompletionBody(fields.Generation):
    """A request to continue texts, or to fill a template."""

    prompt: Prompts | None = Field(
        None, description="A text, several texts, or token ids in their place."
    )
    template: Text | None = Field(
        None, description='A text with gaps: "Dear <slot name=who max=8/>, …".'
    )
    logprobs: int | None = Field(
        None, ge=0, le=fields.MAX_ALTERNATIVES, description="Alternatives a token to report."
    )
    response_format: fields.ResponseFormat | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) is (self.template is None):
            problem = "give either prompt or template"
            raise errors.FieldError("prompt", problem)
        for name in ("stop", "logprobs", "response_format"):
            if self.template is not None and getattr(self, name) is not None:
                raise errors.FieldError(name, f"{name} goes without a template")
        return self


class Logprobs(Answer):
    """What the model thought of an answer's tokens when it fixed them.

    Attributes:
        tokens: their texts.
        token_logprobs: log-probability of each, natural logarithm.
        top_logprobs: the best tokens of its position by text.
        text_offset: where each begins in the answer, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Answer):
    """One answer, or what one has gained.

    Attributes:
        text: of the answer.
        index: which answer: prompts in order, ``n`` for each.
        logprobs: where they were asked for.
        finish_reason: why it ended; null while it goes on.
        finish_detail: the same in the runtime's words: ``steps`` where a block was finished at
            its limit of forwards.
        slots: what is in the slots of a template.
    """

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    finish_detail: str | None = None
    slots: dict[str, str] | None = None


class Completion(Answer):
    """Answers, or an event of their stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    diffusion: dict[str, Any] | None = None


Asked = TypeVar("Asked", bound=fields.Generation)


@dataclass(frozen=True)
class Plan(Generic[Asked]):
    """A checked request for texts.

    Attributes:
        requests: its rows: prompts in order, ``n`` for each.
        filling: of spans; None where text is generated after a prompt.
    """

    unsaid: ClassVar[tuple[str, ...]] = ("usage", "diffusion", "finish_detail", "slots")
    """What is left out of an answer that has none."""

    body: Asked
    served: Served
    requests: Sequence[row.Request]
    filling: slots.Filling | None = None
    id: str = field(default_factory=lambda: answers.identifier("cmpl"))
    created: int = field(default_factory=lambda: int(time.time()))

    def completion(self, *choices: Choice, **more: Any) -> dict[str, Any]:
        """Return an answer, or an event of it, as JSON."""
        found = Completion(
            id=self.id, created=self.created, model=self.served.name, choices=list(choices), **more
        )
        return answers.dump(found, *self.unsaid)

    def finished(self, index: int, text: str, result: Result, **more: Any) -> Choice:
        """Return the end of an answer, with ``text`` of it."""
        return Choice(
            text=text,
            index=index,
            finish_reason=answers.finish_reason(result, self.requests[index].max_new_tokens),
            finish_detail=result.finish_reason,
            **more,
        )

    def news(self, update: Update) -> str:
        """Return what an answer that goes on has gained."""
        return update.text

    def usage(self, results: Sequence[Result]) -> Usage:
        """Return what it cost."""
        return answers.usage(results, fields.count(self.body))


class _Plan(Plan[CompletionBody]):
    """Texts continued, or a template filled."""

    def finished(self, index: int, text: str, result: Result, **more: Any) -> Choice:
        """Return the end of an answer, with ``text`` of it."""
        if self.body.logprobs is not None:
            more["logprobs"] = _logprobs(self.served, result)
        if self.filling is not None:
            more["slots"] = self.filling.slots(result)
        return super().finished(index, text, result, **more)


def _plan(served: Served, body: CompletionBody, site: Site) -> _Plan:
    """Check a request against its model. This tokenizes, so it is for a thread of its own."""
    if body.template is not None:
        fields.check_rows(1, body, site.settings)
        filling = slots.fill(served, body.template, body)
        return _Plan(body, served, filling.requests, filling)
    prompts = _prompts(body.prompt)
    fields.check_rows(len(prompts), body, site.settings)
    config = fields.sampler(served, body)
    more = fields.extras(served, body.logprobs, body.response_format)
    requests: list[row.Request] = []
    for prompt in prompts:
        with errors.blame("prompt"):
            ids = within(served.text, prompt, served.context) if isinstance(prompt, str) else prompt
        most = fields.room(served, len(ids), body)
        # What the prompt allows, a format may not: stop strings, or an answer so short.
        field = "response_format" if "constraint" in more else "prompt"
        for seed in fields.seeds(body):
            with errors.blame(field):
                request = served.generator.request(
                    ids,
                    max_new_tokens=most,
                    sampler=config,
                    seed=seed,
                    stop=fields.stops(body),
                    ignore_eos=fields.ignore_eos(body),
                    **more,
                )
            requests.append(request)
    return _Plan(body, served, requests)


def _prompts(given: Prompts | None) -> list[str] | list[list[int]]:
    """Return one prompt or several as a list."""
    if given is None:
        return []
    if isinstance(given, str):
        return [given]
    ids = [one for one in given if isinstance(one, int)]
    if ids:
        return [ids]
    return [one for one in given if isinstance(one, str)] or [
        one for one in given if isinstance(one, list)
    ]


def _logprobs(served: Served, result: Result) -> Logprobs:
    texts = [served.token(token) for token in result.tokens]
    offsets, offset = [], 0
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return Logprobs(
        tokens=texts,
        token_logprobs=[answers.logprob(one.logprob) for one in result.logprobs],
        top_logprobs=[_top(served, one) for one in result.logprobs],
        text_offset=offsets,
    )


def _top(served: Served, one: TokenLogprob) -> dict[str, float]:
    """Return the best tokens by text; of tokens with the same text the likelier one."""
    pairs = [*one.top, (one.token, one.logprob)]
    best: dict[str, float] = {}
    for token, value in pairs:
        best.setdefault(served.token(token), answers.logprob(value))
    return best


router = APIRouter(route_class=StrictRoute, tags=["completions"])


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses={200: stream.DESCRIPTION, **errors.RESPONSES},
)
async def create_completion(body: CompletionBody, http: Request) -> Response:
    """Continue texts, or fill the slots of a template."""
    served = Site.of(http).catalog.find(body.model)
    return await answer(await planned(_plan, served, body, http), http)


async def answer(plan: Plan[Any], http: Request) -> Response:
    """Answer a checked request, whole or as a stream."""
    run = begun(plan.served, plan.requests, http, canvases=plan.body.diffusing)
    if plan.body.stream:
        return stream.EventStream(run, _events(run, plan), Site.of(http).settings.stall_seconds)
    results = await run.results(http)
    return await run_in_threadpool(_whole, plan, results)


def _whole(plan: Plan[Any], results: Sequence[Result]) -> Response:
    """Return all answers at once; with log-probabilities that may take seconds."""
    choices = [plan.finished(index, one.text, one) for index, one in enumerate(results)]
    return JSONResponse(plan.completion(*choices, usage=plan.usage(results)))


async def _events(run: Run, plan: Plan[Any]) -> AsyncGenerator[dict[str, Any], None]:
    results: dict[int, Result] = {}
    async for update in run.updates():
        canvas = stream.canvas(run, update)
        if canvas is not None:
            yield plan.completion(Choice(text="", index=update.index), diffusion=canvas)
        if update.result is not None:
            results[update.index] = update.result
            yield plan.completion(plan.finished(update.index, update.text, update.result))
        elif news := plan.news(update):
            yield plan.completion(Choice(text=news, index=update.index))
    if fields.wants_usage(plan.body):
        whole = [results[index] for index in range(len(results))]
        yield plan.completion(usage=plan.usage(whole))
