"""``/v1/chat/completions``: conversations, with reasoning, tools and formats that are kept."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from dlmc_runtime import row
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.events import Result
from dlmc_runtime.serve import (
    answers,
    calling,
    chat_answers,
    effort,
    errors,
    fields,
    prompts,
    stream,
)
from dlmc_runtime.serve.answers import FinishReason
from dlmc_runtime.serve.chat_answers import ChatCompletion, Choice, Message
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.jobs import Run, begun, planned
from dlmc_runtime.serve.messages import Messages, conversation
from dlmc_runtime.serve.models import Served, Site
from dlmc_runtime.serve.parsers import formats
from dlmc_runtime.serve.parsers.deltas import Delta
from dlmc_runtime.serve.parsers.formats import Format
from dlmc_runtime.serve.parsers.parser import Parser
from dlmc_runtime.serve.strict import StrictRoute
from dlmc_runtime.serve.tools import Gate, Toolbox, ToolChoice, Tools, toolbox

# What templates are given anyway.
_GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


class ChatBody(fields.Generation):
    """A request to go on with a conversation."""

    messages: Messages
    max_completion_tokens: int | None = Field(
        None, ge=1, le=fields.MAX_TOKENS, description="Another name of max_tokens."
    )
    tools: Tools | None = None
    tool_choice: ToolChoice | None = Field(
        None, description="auto by default; required and a named function are enforced."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false reports at most one call; true lets a required one be several."
    )
    response_format: fields.ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables that the model's chat template reads."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=fields.MAX_ALTERNATIVES)

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        most, other = given.get("max_completion_tokens"), given.get("max_tokens")
        if most is not None and other is not None and most != other:
            raise FieldError(
                "max_completion_tokens", "max_completion_tokens differs from max_tokens", "give one"
            )
        return given if most is None else {**given, "max_tokens": most}

    @model_validator(mode="after")
    def _asks_for_logprobs(self) -> "ChatBody":
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs goes with logprobs only")
        return self


@dataclass(frozen=True)
class Plan:
    """A checked request.

    Attributes:
        requests: its rows, ``n`` of them.
        style: of the model.
        prompt: as the template rendered it.
        toolbox: what may be called.
        enforced: whether the answer has a format that its text is to keep as it is.
    """

    body: ChatBody
    served: Served
    requests: Sequence[row.Request]
    style: Format
    prompt: str
    toolbox: Toolbox
    enforced: bool
    id: str = field(default_factory=lambda: answers.identifier("chatcmpl"))
    created: int = field(default_factory=lambda: int(time.time()))

    def parser(self) -> Parser:
        """Return a parser for one answer."""
        specials = self.style.specials
        if self.enforced:
            return Parser(specials=specials)
        if self.toolbox.required:
            calls = calling.form(self.style)
            return Parser(calls=calls, names=self.toolbox.names, specials=specials)
        return self.style.parser(self.prompt, self.toolbox.names)

    def completion(self, *choices: Choice, streamed: bool, **more: Any) -> dict[str, Any]:
        """Return an answer, or an event of its stream, as JSON."""
        found = ChatCompletion(
            id=self.id,
            object="chat.completion.chunk" if streamed else "chat.completion",
            created=self.created,
            model=self.served.name,
            choices=list(choices),
            **more,
        )
        return chat_answers.dump(found)

    def finished(self, index: int, result: Result, calls: int, **said: Message) -> Choice:
        """Return the end of an answer that made so many calls."""
        reason: FinishReason = answers.finish_reason(result, self.requests[index].max_new_tokens)
        if calls and (reason == "stop" or self.toolbox.required):
            reason = "tool_calls"
        return Choice(
            index=index,
            logprobs=chat_answers.chances(self.served, result) if self.body.logprobs else None,
            finish_reason=reason,
            finish_detail=result.finish_reason,
            **said,
        )


def plan(served: Served, body: ChatBody, site: Site) -> Plan:
    """Check a request against its model. This tokenizes, so it is for a thread of its own.

    Raises:
        FieldError: the model cannot do what a field asks for.
    """
    fields.check_rows(1, body, site.settings)
    if not served.text.has_template:
        problem = f"{served.name} has no chat template"
        raise FieldError(
            "model", problem, "use /v1/completions, or a model that was taught to chat"
        )
    style = formats.find(served.text)
    box = _toolbox(served, body)
    enforced = body.response_format is not None and body.response_format.type != "text"
    prompt = _render(served, body, style, box, enforced=enforced or box.required)
    most = fields.room(served, len(prompt.ids), body, param="messages")
    more = _extras(served, body, style, box)
    config = fields.sampler(served, body)
    param = "response_format" if enforced else "tool_choice" if box.required else "messages"
    requests = []
    for seed in fields.seeds(body):
        with errors.blame(param):
            request = served.generator.request(
                prompt.ids,
                max_new_tokens=most,
                sampler=config,
                seed=seed,
                stop=fields.stops(body),
                ignore_eos=fields.ignore_eos(body),
                skip_special_tokens=False,
                **more,
            )
        requests.append(request)
    return Plan(body, served, requests, style, prompt.text, box, enforced)


def _toolbox(served: Served, body: ChatBody) -> Toolbox:
    box = toolbox(body.tools, body.tool_choice, several=body.parallel_tool_calls)
    if box.tools and "tools" not in served.text.template_reads:
        problem = f"the chat template of {served.name} has no place for tools"
        raise FieldError("tools", problem, "use a model that was taught to call them")
    if box.callable and body.response_format is not None and body.response_format.type != "text":
        problem = "an answer cannot both keep a format and call tools"
        raise FieldError("response_format", problem, "use tool_choice none, or leave it out")
    return box


def _render(
    served: Served, body: ChatBody, style: Format, box: Toolbox, *, enforced: bool
) -> prompts.Prompt:
    codec = served.text
    turns = conversation(body.messages, codec)
    variables = _variables(body, codec.template_reads - _GIVEN, enforced=enforced)
    try:
        prompt = prompts.render(codec, style, turns, box.declared(), variables, served.context)
    except DlmcError as error:
        raise FieldError("messages", error.message, error.hint) from error
    if enforced and style.opens_thought(prompt.text):
        problem = "the chat template begins with a thought, which the format leaves no room for"
        raise FieldError("chat_template_kwargs", problem, "turn thinking off")
    return prompt


def _variables(body: ChatBody, reads: frozenset[str], *, enforced: bool) -> dict[str, Any]:
    """Return what the chat template is told. What is enforced leaves no room for thinking."""
    given = body.chat_template_kwargs or {}
    for name in given.keys() - reads:
        field_name = f"chat_template_kwargs.{name[:64]}"
        hint = f"it reads {', '.join(sorted(reads))}" if reads else "leave it out"
        raise FieldError(field_name, f"the chat template reads no variable {name[:64]}", hint)
    level: effort.Level | None = "instant" if enforced else body.reasoning_effort
    return {**({} if level is None else effort.variables(level, reads)), **given}


def _extras(served: Served, body: ChatBody, style: Format, box: Toolbox) -> dict[str, Any]:
    """Return the keyword arguments of `Generator.request` that only some requests have."""
    alternatives = (body.top_logprobs or 0) if body.logprobs else None
    try:
        more = fields.extras(served, alternatives, body.response_format)
    except FieldError as error:
        if error.param != "logprobs":
            raise
        raise FieldError("top_logprobs", error.message, error.hint) from error
    if box.required:
        more["constraint"] = calling.constraint(served, style, box)
    return more


class Speaker:
    """One answer of a stream: committed text in, pieces of a message out."""

    def __init__(self, plan: Plan) -> None:
        self._parser, self._gate = plan.parser(), Gate(plan.toolbox)

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return self._gate.calls

    def hear(self, text: str, *, last: bool) -> list[Delta]:
        """Return what is new."""
        found = self._parser.feed(text)
        return self._gate.let([*found, *(self._parser.end() if last else ())])

    async def listen(self, text: str, *, last: bool) -> list[Delta]:
        """Do the same without holding up others while arguments are checked."""
        if not self._gate.checks:
            return self.hear(text, last=last)
        return await run_in_threadpool(self.hear, text, last=last)


router = APIRouter(route_class=StrictRoute, tags=["chat"])


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses={200: stream.DESCRIPTION, **errors.RESPONSES},
)
async def create_chat_completion(body: ChatBody, http: Request) -> Response:
    """Go on with a conversation."""
    return await answer(body, http)


async def answer(body: ChatBody, http: Request) -> Response:
    """Answer a request that came over HTTP."""
    site = Site.of(http)
    served = site.catalog.find(body.model)
    made = await planned(plan, served, body, http)
    run = begun(served, made.requests, http, canvases=body.diffusing)
    if body.stream:
        return stream.EventStream(run, _events(run, made), site.settings.stall_seconds)
    results = await run.results(http)
    return await run_in_threadpool(_whole, made, results)


def _whole(made: Plan, results: Sequence[Result]) -> Response:
    """Return all answers at once; with log-probabilities that may take seconds."""
    choices = [_choice(made, index, result) for index, result in enumerate(results)]
    usage = answers.usage(results, fields.count(made.body))
    return JSONResponse(made.completion(*choices, streamed=False, usage=usage))


def _choice(made: Plan, index: int, result: Result) -> Choice:
    speaker = Speaker(made)
    said = chat_answers.message(speaker.hear(result.text, last=True))
    return made.finished(index, result, speaker.calls, message=said)


async def _events(run: Run, made: Plan) -> AsyncGenerator[dict[str, Any], None]:
    speakers = [Speaker(made) for _ in made.requests]
    results: dict[int, Result] = {}
    for index in range(len(speakers)):
        opening = Message(role="assistant", content="")
        yield made.completion(Choice(index=index, delta=opening), streamed=True)
    async for update in run.updates():
        index, speaker = update.index, speakers[update.index]
        canvas = stream.canvas(run, update)
        if canvas is not None:
            unchanged = Choice(index=index, delta=Message())
            yield made.completion(unchanged, streamed=True, diffusion=canvas)
        calls = speaker.calls
        deltas = await speaker.listen(update.text, last=update.result is not None)
        for piece in chat_answers.pieces(deltas, calls):
            yield made.completion(Choice(index=index, delta=piece), streamed=True)
        if update.result is not None:
            results[index] = update.result
            last = made.finished(index, update.result, speaker.calls, delta=Message())
            yield made.completion(last, streamed=True)
    if fields.wants_usage(made.body):
        whole = [results[index] for index in range(len(results))]
        yield made.completion(streamed=True, usage=answers.usage(whole, fields.count(made.body)))
