"""``/v1/edit/completions``: the next edit of a file, as a model that was taught to edit writes it.

The one message names, between tags, what the editor shows: the current file, in it the code to
edit, the cursor, and what was seen and changed lately. It reaches the model through its chat
template like any other message; the answer is a chat completion.
"""

import re
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from dlmc_runtime.serve import chat, effort, errors, fields
from dlmc_runtime.serve.chat import ChatBody
from dlmc_runtime.serve.chat_answers import ChatCompletion
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fields import WholeBody
from dlmc_runtime.serve.messages import Message
from dlmc_runtime.serve.models import Site
from dlmc_runtime.serve.strict import StrictRoute

MAX_TOKENS = 8192
TEMPERATURE = 0.2
"""Unless a request states one, where the sampler heeds a temperature."""

SECTIONS = (
    "recently_viewed_code_snippets",
    "current_file_content",
    "code_to_edit",
    "edit_diff_history",
)
_NEEDED = "code_to_edit"
_TAG = re.compile(rf"<\|(/?)({'|'.join(SECTIONS)})\|>")


class EditBody(WholeBody):
    """A request for the next edit."""

    model: str = Field(max_length=256, description="A name that /v1/models lists.")
    messages: Annotated[list[Message], Field(min_length=1, max_length=1)] = Field(
        description="One message of the user, with the sections <|code_to_edit|> … "
        "<|/code_to_edit|> and others like it."
    )
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=1000)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=fields.MAX_TOKENS)
    seed: int | None = Field(None, ge=0, le=fields.MAX_SEED)
    stop: fields.StopText | fields.Stops | None = None
    user: fields.Label | None = None
    diffusion: fields.Diffusion | None = None
    reasoning_effort: effort.Level | None = None
    stream: bool | None = None
    tools: list[Any] | None = None

    @model_validator(mode="after")
    def _fits(self) -> "EditBody":
        for name in ("stream", "tools"):
            if getattr(self, name):
                raise FieldError(name, f"{name} is not supported here", "use /v1/chat/completions")
        message = self.messages[0]
        if message.role != "user":
            raise FieldError("messages", "the message is not the user's", "give one of role user")
        content = message.content
        text = content if isinstance(content, str) else "".join(part.text for part in content or ())
        _check_sections(text)
        return self


class _Conversation(ChatBody):
    """What an edit becomes."""

    most_tokens: ClassVar[int] = MAX_TOKENS


def _check_sections(text: str) -> None:
    """Refuse sections that are not closed, or not in order, and a text without code to edit."""
    opened: list[str] = []
    seen = set()
    for tag in _TAG.finditer(text):
        closing, name = tag.groups()
        if not closing:
            opened.append(name)
        elif not opened or opened.pop() != name:
            raise FieldError("messages", f"<|/{name}|> closes nothing", f"put <|{name}|> before it")
        seen.add(name)
    if opened:
        raise FieldError("messages", f"<|{opened[-1]}|> has no end", f"write <|/{opened[-1]}|>")
    if _NEEDED not in seen:
        problem = f"the message has no section <|{_NEEDED}|>"
        raise FieldError("messages", problem, f"write <|{_NEEDED}|> … <|/{_NEEDED}|> in it")


router = APIRouter(route_class=StrictRoute, tags=["chat"])


@router.post("/v1/edit/completions", response_model=ChatCompletion, responses=errors.RESPONSES)
async def create_edit_completion(body: EditBody, http: Request) -> Response:
    """Write the next edit of a file."""
    served = Site.of(http).catalog.find(body.model)
    given = {name: getattr(body, name) for name in body.model_fields_set - {"stream", "tools"}}
    asked = _Conversation.model_construct(**given)
    if asked.temperature is None:
        warmer = asked.model_copy(update={"temperature": TEMPERATURE})
        try:
            fields.sampler(served, warmer)
            asked = warmer
        except FieldError:
            pass  # the sampler takes the best token, or has temperatures of its own
    return await chat.answer(asked, http)
