"""`dlmc run`: a prompt in, text out."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlmc.cli.chat import ChatOptions, read_question
from dlmc.cli.console import (
    DEFAULT_TARGET,
    AsJson,
    BundlePath,
    Target,
    harmless,
    note,
    on_terminal,
    say,
    say_json,
)
from dlmc_runtime import legal
from dlmc_runtime.errors import UsageError
from dlmc_runtime.samplers import SAMPLERS

if TYPE_CHECKING:
    from dlmc_runtime import Event, Generator, Result, SamplerConfig
    from dlmc_runtime.constraints import Constraint

_SHOWN = 40  # characters of a value that an error repeats

View = Callable[["Event"], object]

SamplerOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other parameter of the sampler, see docs/samplers.md; repeatable.",
    ),
]


def command(
    bundle: BundlePath,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to answer; read from stdin if absent or -."),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the chat template. [default: if there is one]"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    messages: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='The conversation before PROMPT: JSON, [{"role": "user", "content": "..."}].',
        ),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Functions to call: JSON, as OpenAI declares them."),
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="The chat template's enable_thinking."),
    ] = None,
    template_args: Annotated[
        list[str] | None,
        typer.Option(
            "--template-arg",
            metavar="NAME=VALUE",
            help="Any other variable of the chat template, as JSON or text; repeatable.",
        ),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Most tokens to generate.")] = None,
    sampler: Annotated[
        str | None, typer.Option(help=f"Which one commits positions: {', '.join(SAMPLERS)}.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Forwards per block, at most. [default: one a position]")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Commit every position at least this sure.")
    ] = None,
    factor: Annotated[
        float | None, typer.Option(help="Bound of Fast-dLLM's parallel decoding.")
    ] = None,
    block_length: Annotated[
        int | None, typer.Option(help="Positions denoised together, where the model lets you.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the best token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw among this many best tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the tokens of this much probability.")
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            help="none, prefix or dual: Fast-dLLM's caches for LLaDA, Dream and the like."
        ),
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Scale of classifier-free guidance (export --guided).")
    ] = None,
    options: SamplerOptions = None,
    infill: Annotated[
        str | None,
        typer.Option(
            metavar="TEMPLATE",
            help='Fill the holes of "before<mask:16>after"; PROMPT comes before it.',
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="<str>", help="End the text before this string; repeatable."),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer with JSON that validates against a schema."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Answer with a text that a regular expression matches.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Do not end at stop tokens.")
    ] = False,
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens", help="Show special tokens, such as those around thoughts."
        ),
    ] = False,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the canvas denoising.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", "-v", help="Print the speed even where no one watches.")
    ] = False,
) -> None:
    """Generate text.

    On a terminal the answer streams, followed by its speed; in a pipe only the answer is printed.
    """
    from dlmc_runtime import Generator, SamplerConfig
    from dlmc_runtime.infill import parse
    from dlmc_runtime.samplers.choice import choose

    given = {
        "steps": steps,
        "threshold": threshold,
        "factor": factor,
        "block_length": block_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "cache": cache,
        "guidance": guidance,
    }
    given |= sampler_options(options, given)
    # A mistake is found before a load of minutes.
    config = SamplerConfig().updated(name=sampler, **given)
    if sampler is not None:
        legal.check_heeded(config)
    talk = ChatOptions(chat, system, messages, tools, thinking, template_args)
    answer: dict[str, Any] = {"--stop": stop, "--json-schema": json_schema, "--regex": regex}
    answer |= {"--ignore-eos": ignore_eos, "--special-tokens": special_tokens}
    if infill is not None:
        _refuse([name for name in answer if answer[name]], "--infill goes without {}")
    question = None
    if infill is None or prompt is not None or messages is not None:
        question = read_question(prompt, talk)
    else:
        _refuse(talk.given(), "{} needs a prompt before the template")
    with Generator.load(bundle, target) as generator:
        config = choose(generator.sampler, sampler, given)
        same: dict[str, Any] = {"max_new_tokens": max_new_tokens, "sampler": config, "seed": seed}
        rendered = "" if question is None else question.render(generator.text)
        if infill is not None:
            template = [rendered, *parse(infill)] if rendered else infill
            request = generator.infill_request(template, **same)
        else:
            request = generator.request(
                rendered,
                stop=stop or (),
                ignore_eos=ignore_eos,
                skip_special_tokens=not special_tokens,
                constraint=find_constraint(generator, json_schema, regex),
                **same,
            )
        streaming = on_terminal() and not as_json and not watch
        with _view(generator, streaming=streaming, watch=watch) as view:
            result = follow(generator.events([request]), view)
    if as_json:
        say_json(report(result, seed, config))
    else:
        say("" if streaming else _readable(result.text))
    if stats or (on_terminal() and not as_json):
        note(speed(result))


def _readable(text: str) -> str:
    """Return a text as a terminal may have it; a pipe gets all of it."""
    return harmless(text) if on_terminal() else text


def find_constraint(
    generator: "Generator", json_schema: Path | None, regex: str | None
) -> "Constraint | None":
    """Return what the answer must match; None where nothing is asked for.

    Raises:
        UsageError: both are given, or the file is no JSON.
        RequestError: the constraint is not supported.
    """
    if json_schema is None:
        return None if regex is None else generator.constraints.regex(regex)
    if regex is not None:
        raise UsageError("--json-schema and --regex are two constraints", "give one of them")
    try:
        description = json.loads(json_schema.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"{json_schema} cannot be read ({error.strerror})"
        raise UsageError(problem, "give a file") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{json_schema} is no JSON", "give a JSON schema") from None
    return generator.constraints.json_schema(description)


def _refuse(given: Sequence[str], problem: str) -> None:
    """Refuse the first option that is given."""
    if given:
        raise UsageError(problem.format(given[0]), f"leave out {given[0]}")


def sampler_options(
    given: Sequence[str] | None, others: Mapping[str, object] = MappingProxyType({})
) -> dict[str, Any]:
    """Return parameters of a sampler given as ``name=value``; lists are separated by commas.

    Raises:
        UsageError: a text is of another form, or names what is among ``others`` already.
    """
    from dlmc_runtime import SamplerConfig

    known = {field.name: field.type for field in fields(SamplerConfig)}
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or name not in known or name == "name":
            raise UsageError(
                f"--set {text} names no parameter of samplers",
                f"write NAME=VALUE with one of {', '.join(sorted(known.keys() - {'name'}))}",
            )
        if name in found or others.get(name) is not None:
            raise UsageError(f"{name} is given twice", "give it once")
        found[name] = _value(name, value, str(known[name]))
    return found


def _value(name: str, value: str, kind: str) -> Any:
    """Return a text as the type that a parameter has."""
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    if "tuple" in kind:
        if re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*", value):
            return tuple(map(int, value.split(",")))
        raise UsageError(f"--set {name}={shown}", "give ids separated by commas")
    if "int" in kind:
        if re.fullmatch(r"-?[0-9]{1,18}", value):
            return int(value)
        raise UsageError(f"--set {name}={shown}", "give a whole number")
    if "float" not in kind:
        return value
    if re.fullmatch(r"-?[0-9.]{1,32}(e-?[0-9]{1,3})?", value) and value.count(".") <= 1:
        return float(value)
    raise UsageError(f"--set {name}={shown}", "give a number")


def _view(generator: "Generator", *, streaming: bool, watch: bool) -> AbstractContextManager[View]:
    """Return what shows the events as they come."""
    if watch:
        from dlmc.cli.watch import watching

        noisy = generator.manifest.tokens.mask is None
        return watching(generator.text, noisy=noisy)
    return nullcontext(_type_out if streaming else lambda _: None)


def _type_out(event: "Event") -> None:
    from dlmc_runtime import Committed

    if isinstance(event, Committed):
        typer.echo(harmless(event.text), nl=False)


def follow(events: Iterable["Event"], view: View) -> "Result":
    """Show events until the row has finished and return its result."""
    from dlmc_runtime import Finished

    for event in events:
        view(event)
        if isinstance(event, Finished):
            return event.result
    raise RuntimeError("the stream ended without a result")


def report(result: "Result", seed: int, sampler: "SamplerConfig") -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        **asdict(result),
        "tokens_per_forward": result.tokens_per_forward,
        "tokens_per_second": result.tokens_per_second,
        "seed": seed,
        "sampler": asdict(sampler),
    }


def speed(result: "Result") -> str:
    """Return one line about an answer's cost."""
    return (
        f"{_count(len(result.tokens), 'token')} in {_count(result.forwards, 'forward')}, "
        f"{result.tokens_per_forward:.2f} tokens per forward, "
        f"{result.tokens_per_second:.1f} tokens per second ({result.finish_reason})"
    )


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
