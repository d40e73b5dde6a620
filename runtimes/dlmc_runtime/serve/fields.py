"""The fields that endpoints share, and what they mean to the runtime.

Every body refuses fields it does not have and values of another type, so that nothing a client
asks for is ignored. What only a model can decide is checked when its request is made.
"""

import secrets
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from dlmc_runtime import legal
from dlmc_runtime.constraints import Constraint
from dlmc_runtime.errors import DlmcError
from dlmc_runtime.samplers import SAMPLERS
from dlmc_runtime.samplers.choice import choose
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.serve import effort
from dlmc_runtime.serve.errors import FieldError, blame
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.settings import Settings

MAX_STOPS, MAX_STOP_CHARACTERS = 16, 256
MAX_TOKENS = 1 << 20
MAX_SEED = (1 << 63) - 1
MAX_CHOICES = 64
MAX_ALTERNATIVES = 20
MAX_IDS = 4096  # of one list of token ids among a sampler's options
MAX_PATTERN = 1 << 16
_LARGEST = 1e9

Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
Whole = Annotated[int, Field(ge=0, le=MAX_SEED)]
TokenId = Annotated[int, Field(ge=0, le=MAX_SEED)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Label = Annotated[str, Field(max_length=256, description="A label; it changes nothing.")]
Stops = Annotated[list[StopText], Field(max_length=MAX_STOPS)]


class Body(BaseModel):
    """A JSON object of a request: no field but its own, no type but the one named."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


NEUTRAL: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "min_tokens": 0,
    "stop_token_ids": [],
    "ignore_eos": False,
    "skip_special_tokens": True,
    "add_generation_prompt": True,
    "length_penalty": 1,
    "store": False,
    "metadata": {},
    "service_tier": "auto",
    "modalities": ["text"],
}
"""Fields that nothing here has, by the value (besides null) at which they ask for nothing."""

SYNONYMS: Mapping[str, Mapping[Any, Any]] = {
    "top_k": {-1: 0},
    "reasoning_effort": {"none": "instant", "minimal": "instant"},
}
"""Values that clients of other servers send, and what they are called here."""


def _asks_for_nothing(name: str, value: Any) -> bool:
    if name not in NEUTRAL:
        return False
    alike = isinstance(value, bool) is isinstance(NEUTRAL[name], bool)  # to Python, 0 is False
    return value is None or (alike and bool(value == NEUTRAL[name]))


def _named_here(name: str, value: Any) -> Any:
    known = SYNONYMS.get(name, {})
    return known.get(value, value) if isinstance(value, int | str) else value


class WholeBody(Body):
    """The whole body of a request. Clients send some fields always: neutral ones are dropped."""

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        own = cls.model_fields
        asked = {k: v for k, v in given.items() if k in own or not _asks_for_nothing(k, v)}
        return {name: _named_here(name, value) for name, value in asked.items()}


class StreamOptions(Body):
    """How to stream."""

    include_usage: bool = Field(default=False, description="End with an event that has `usage`.")


_TYPES: dict[Any, Any] = {
    int | None: Whole | None,
    float | None: Number | None,
    str | None: Annotated[str, Field(max_length=64)] | None,
    tuple[int, ...]: Annotated[list[TokenId], Field(max_length=MAX_IDS)] | None,
    int: Whole | None,
    float: Number | None,
}
_ELSEWHERE = ("name", "temperature", "top_k", "top_p")  # fields of the body itself


class _Diffusion(Body):
    sampler: Literal[SAMPLERS] | None = Field(None, description="Another sampler by name.")  # type: ignore[valid-type]
    ignore_eos: bool = Field(default=False, description="Go on at the model's stop tokens.")


_OPTIONS: dict[str, Any] = {
    one.name: (_TYPES[one.type], None)
    for one in fields(SamplerConfig)
    if one.name not in _ELSEWHERE
}
if TYPE_CHECKING:
    Diffusion = _Diffusion
else:
    about = "The sampler and its options, see docs/samplers.md."
    Diffusion = create_model("Diffusion", __base__=_Diffusion, __doc__=about, **_OPTIONS)


class Generation(WholeBody):
    """What every generating endpoint takes.

    Attributes:
        most_tokens: of an answer, where nothing is asked for and the model has a larger default.
    """

    most_tokens: ClassVar[int] = MAX_TOKENS
    model: str = Field(max_length=256, description="A name that /v1/models lists.")
    stream: bool = Field(default=False, description="Send server-sent events.")
    stream_options: StreamOptions | None = None
    diffusing: bool = Field(
        default=False, description="Stream a whole intermediate canvas after every forward as well."
    )
    max_tokens: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Most tokens to generate."
    )
    temperature: float | None = Field(None, ge=0, le=1000, description="0 takes the best token.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOKENS, description="0 or -1 means all tokens.")
    seed: int | None = Field(None, ge=0, le=MAX_SEED, description="Choice i of n uses seed + i.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Answers to every prompt.")
    stop: StopText | Stops | None = Field(None, description="Texts that end an answer before them.")
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    diffusion: Diffusion | None = None
    reasoning_effort: effort.Level | None = Field(
        None, description="none and minimal are other names of instant."
    )

    @model_validator(mode="after")
    def _streaming(self) -> Self:
        if not self.stream:
            for name in ("stream_options", "diffusing"):
                if getattr(self, name):
                    raise FieldError(name, f"{name} goes with stream only")
        return self


class JsonSchema(Body):
    """A JSON schema for an answer."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = Field(None, max_length=MAX_TOKENS)
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="Answers validate either way.")


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that a schema accepts."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class RegexFormat(Body):
    """A text that a regular expression matches as a whole."""

    type: Literal["regex"]
    pattern: str = Field(min_length=1, max_length=MAX_PATTERN)


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat, Field(discriminator="type")
]


def stops(body: Generation) -> list[str]:
    """Return the texts that end an answer."""
    given = body.stop
    return [given] if isinstance(given, str) else list(given or ())


def count(body: Generation) -> int:
    """Return how many answers a prompt gets."""
    return body.n or 1


def seeds(body: Generation) -> list[int]:
    """Return a seed for each of a prompt's answers; without one in the body, new ones."""
    first = secrets.randbelow(1 << 62) if body.seed is None else body.seed
    return [first + index for index in range(count(body))]


def check_rows(prompts: int, body: Generation, settings: Settings) -> None:
    """Refuse more rows than a request may have.

    Raises:
        FieldError: it asks for more.
    """
    most = settings.max_choices
    if prompts * count(body) > most:
        raise FieldError(
            "n", f"{prompts} prompts with {count(body)} choices each", f"{most} at most"
        )


def sampler(served: Served, body: Generation) -> SamplerConfig:
    """Return the sampler a request asks for: the model's, a preset, and single options on top.

    Raises:
        FieldError: the model or the sampler takes no such option; it names the field.
    """
    generator = served.generator
    own = {key: getattr(body, key) for key in ("temperature", "top_p", "top_k")}
    diffusion = {} if body.diffusion is None else body.diffusion.model_dump(exclude_none=True)
    diffusion.pop("ignore_eos", None)
    name = diffusion.pop("sampler", None)
    default = generator.sampler
    if body.reasoning_effort is not None:
        # Of the sampler that is asked for, whichever that is; single options go on top.
        default, name = choose(default, name, {}), None
        answer = body.max_tokens or generator.manifest.max_new_tokens
        attention = generator.manifest.attention
        default = effort.preset(default, body.reasoning_effort, attention, answer)
    given = {key: value for key, value in own.items() if value is not None}
    given |= {k: tuple(v) if isinstance(v, list) else v for k, v in diffusion.items()}
    try:
        return _checked(served, default, name, given)
    except DlmcError as error:
        culprit = _culprit(served, default, name, given)
        raise FieldError(culprit, error.message, error.hint) from error


def _checked(
    served: Served, default: SamplerConfig, name: str | None, given: dict[str, Any]
) -> SamplerConfig:
    config = choose(default, name, given)
    legal.check(config, served.generator.manifest)
    return config


def _culprit(
    served: Served, default: SamplerConfig, name: str | None, given: dict[str, Any]
) -> str:
    """Return the field behind an error: the first that is wrong by itself."""
    for key, tried in (("sampler", {}), *((key, {key: value}) for key, value in given.items())):
        try:
            _checked(served, default, name, tried)
        except DlmcError:
            return key if key in _ELSEWHERE else f"diffusion.{key}"
    return "diffusion"


def room(served: Served, prompt_tokens: int, body: Generation, *, param: str = "prompt") -> int:
    """Return how many tokens an answer may have: what is asked for, or the model's default.

    The default is cut to what the context has left for sure; what is asked for is not.

    Args:
        served: the model.
        prompt_tokens: of the prompt.
        body: of the request.
        param: the field the prompt is in.

    Raises:
        FieldError: prompt and answer exceed the context.
    """
    left = served.context - prompt_tokens
    asked = body.max_tokens
    if left < 1 or (asked is not None and asked > left):
        too_long = left < 1
        wanted = " leaves no room in" if too_long else f" and an answer of {asked} exceed"
        raise FieldError(
            param if too_long else "max_tokens",
            f"a prompt of {prompt_tokens} tokens{wanted} the context of {served.context}",
            "shorten it" if too_long else f"ask for {left} at most, or shorten the prompt",
            code="context_length_exceeded",
        )
    manifest = served.generator.manifest
    if asked is not None:
        return asked
    spare = 0 if manifest.attention.regime == "full" else manifest.attention.block_length
    return max(min(manifest.max_new_tokens, body.most_tokens, left - spare), 1)


def extras(
    served: Served, logprobs: int | None, response_format: ResponseFormat | None
) -> dict[str, Any]:
    """Return the keyword arguments of `Generator.request` that only some requests have.

    Raises:
        FieldError: the model cannot do it.
    """
    more: dict[str, Any] = {}
    if logprobs is not None:
        kept = served.generator.manifest.head.candidates
        if logprobs > kept:
            problem = f"{logprobs} alternatives a token are more than the {kept} the graph keeps"
            raise FieldError("logprobs", problem, f"ask for {kept} at most")
        more["logprobs"] = logprobs
    if response_format is not None and response_format.type != "text":
        with blame("response_format"):
            more["constraint"] = _constraint(served, response_format)
    return more


def _constraint(served: Served, asked: ResponseFormat) -> Constraint | None:
    compiler = served.generator.constraints
    match asked:
        case JsonSchemaFormat():
            return compiler.json_schema(asked.json_schema.schema_)
        case JsonObjectFormat():
            return compiler.json_object()
        case RegexFormat():
            return compiler.regex(asked.pattern)
    return None


def wants_usage(body: Generation) -> bool:
    """Return whether a stream ends with its usage."""
    return body.stream_options is not None and body.stream_options.include_usage


def ignore_eos(body: Generation) -> bool:
    """Return whether to go on at stop tokens."""
    return body.diffusion is not None and body.diffusion.ignore_eos
