"""Questions with one right answer each: speed means nothing without them.

A file of tasks holds one JSON object a line, ``{"prompt": "sort 3 1 2", "answer": "1 2 3"}``, with
an optional ``"task"`` that groups them. A bundle has tasks where such a file lies in it as
``validation/tasks.jsonl``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlmc.checkpoint.bounded_json import MAX_JSON_BYTES, parse_object
from dlmc_runtime.errors import UsageError
from dlmc_runtime.generate import Generator
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.text import TextCodec

IN_BUNDLE = "validation/tasks.jsonl"
_KEYS = {"prompt", "answer", "task"}
_FORM = 'each line must be like {"prompt": "sort 3 1 2", "answer": "1 2 3"}'


@dataclass(frozen=True)
class Task:
    """A question and the only answer that counts, compared character by character."""

    prompt: str
    answer: str
    task: str = "all"


@dataclass(frozen=True)
class Score:
    """What an engine made of tasks, stopping where the model does.

    Attributes:
        task: name of the group.
        asked: how many.
        exact: how many answers were exactly right.
        tokens_per_forward: tokens of all answers over all their forwards.
        tokens_per_second: the same over their seconds.
    """

    task: str
    asked: int
    exact: int
    tokens_per_forward: float
    tokens_per_second: float

    @property
    def accuracy(self) -> float:
        """Exact answers over questions."""
        return self.exact / self.asked


def read_tasks(path: Path) -> list[Task]:
    """Read a file of tasks.

    Raises:
        UsageError: it cannot be read, holds none, or a line is something else; the message names
            the line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", "check the path") from None
    if len(data) > MAX_JSON_BYTES:
        raise UsageError(f"{path} is larger than {MAX_JSON_BYTES} bytes", "ask fewer questions")
    lines = [(i, line) for i, line in enumerate(data.splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} holds no tasks", _FORM)
    return [_task(line, f"line {number} of {path}") for number, line in lines]


def _task(line: bytes, where: str) -> Task:
    try:
        data = parse_object(line)
    except ValueError as error:
        raise UsageError(f"{where} is {error}", _FORM) from None
    if not {"prompt", "answer"} <= data.keys() <= _KEYS:
        raise UsageError(f"{where} has the keys {', '.join(sorted(data)) or 'none'}", _FORM)
    if not all(isinstance(value, str) and value for value in data.values()):
        raise UsageError(f"{where} holds something else than texts", _FORM)
    return Task(**data)


def rendered(codec: TextCodec | None, prompt: str) -> str:
    """Return the text to encode: a chat where the bundle has a template, else the prompt."""
    if codec is None or not codec.has_template:
        return prompt
    return codec.chat([{"role": "user", "content": prompt}])


def score(
    generator: Generator,
    tasks: Sequence[Task],
    sampler: SamplerConfig,
    *,
    max_new_tokens: int | None = None,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> list[Score]:
    """Ask every question and count exact answers, one score a group in the order of the file.

    Args:
        generator: who answers.
        tasks: the questions.
        sampler: how.
        max_new_tokens: length of an answer; None for the bundle's own.
        seed: of every answer.
        advance: called after each answer.

    Raises:
        RequestError: a question does not fit the engine.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.task, []).append(task)
    return [
        _group(generator, name, group, sampler, max_new_tokens, seed, advance)
        for name, group in groups.items()
    ]


def _group(
    generator: Generator,
    name: str,
    tasks: Sequence[Task],
    sampler: SamplerConfig,
    max_new_tokens: int | None,
    seed: int,
    advance: Callable[[], object],
) -> Score:
    exact = tokens = forwards = 0
    seconds = 0.0
    for task in tasks:
        prompt = rendered(generator.text, task.prompt)
        result = generator.generate(
            prompt, sampler=sampler, max_new_tokens=max_new_tokens, seed=seed
        )
        exact += result.text == task.answer
        tokens, forwards = tokens + len(result.tokens), forwards + result.forwards
        seconds += result.seconds
        advance()
    return Score(name, len(tasks), exact, tokens / forwards, tokens / seconds)
