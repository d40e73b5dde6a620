"""What answers of all generating endpoints have in common."""

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dlmc_runtime.events import UNLIKELY, Result


class Answer(BaseModel):
    """A JSON object of a response."""

    model_config = ConfigDict(extra="forbid")


class PromptDetails(Answer):
    """More about a prompt's tokens.

    Attributes:
        cached_tokens: whose keys and values an earlier request had left behind.
    """

    cached_tokens: int = 0


class Usage(Answer):
    """What a request cost.

    Attributes:
        prompt_tokens: each prompt counted once, however many answers it got.
        completion_tokens: of all answers, without the stop tokens that ended them.
        total_tokens: the sum of both.
        prompt_tokens_details: more about the prompts.
        forwards: engine runs that rows of this request took part in, summed over its rows.
        tokens_per_forward: completion tokens a forward, as the model's family counts it.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    forwards: int
    tokens_per_forward: float


FinishReason = Literal["stop", "length", "tool_calls"]


def usage(results: Sequence[Result], choices: int = 1) -> Usage:
    """Return what a request cost.

    Args:
        results: of all rows; the answers to one prompt stand together.
        choices: answers a prompt.
    """
    prompts = results[::choices]
    asked = sum(result.prompt_tokens for result in prompts)
    made = sum(len(result.tokens) for result in results)
    # Rows count forwards as their family does; what adds up is forwards, not their inverse.
    counted = sum(len(r.tokens) / r.tokens_per_forward for r in results if r.tokens_per_forward)
    return Usage(
        prompt_tokens=asked,
        completion_tokens=made,
        total_tokens=asked + made,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(r.cached_tokens for r in prompts)),
        forwards=sum(result.forwards for result in results),
        tokens_per_forward=made / counted if counted else 0.0,
    )


def finish_reason(result: Result, most: int) -> Literal["stop", "length"]:
    """Return OpenAI's word for why an answer ended.

    Args:
        result: of the row.
        most: tokens it could have had.
    """
    if result.finish_reason == "steps":  # a word of ours: a block ran out of forwards
        return "length" if len(result.tokens) >= most else "stop"
    return "length" if result.finish_reason == "length" else "stop"


def logprob(value: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(value, UNLIKELY)  # JSON has no infinity


def dump(answer: Answer, *optional: str) -> dict[str, Any]:
    """Return an answer as JSON, without those ``optional`` fields that are None, at any depth."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if v is not None or k not in optional}
            return {key: without(one) for key, one in kept.items()}
        return [without(one) for one in value] if isinstance(value, list) else value

    found: dict[str, Any] = without(answer.model_dump(mode="json"))
    return found


def identifier(prefix: str) -> str:
    """Return a new id of an answer, such as ``cmpl-…``."""
    return f"{prefix}-{secrets.token_hex(12)}"
