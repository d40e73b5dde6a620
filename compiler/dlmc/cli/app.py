"""`dlmc`: the table of verbs, and the one place where errors become sentences.

A verb's module is imported when the verb is called, so that ``dlmc --help`` costs next to
nothing. The module has a function ``command`` that typer can read, or a typer ``app`` where the
verb has verbs of its own.
"""

import io
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dlmc_runtime.errors import DlmcError
from dlmc_runtime.version import __version__

VERBS: dict[str, tuple[str, str]] = {
    "export": ("dlmc.cli.export", "Make a bundle from a checkpoint."),
    "build": ("dlmc.cli.build", "Build an engine from a bundle."),
    "validate": ("dlmc.cli.validate", "Compare built engines with a reference."),
    "run": ("dlmc.cli.run", "Generate text."),
    "serve": ("dlmc.cli.serve", "Serve bundles over HTTP, as OpenAI's clients expect it."),
    "bench": ("dlmc.cli.bench", "Time engines: forwards, generations, memory, the floor."),
    "package": ("dlmc.cli.package", "Make a folder that Triton or Ray Serve runs a bundle from."),
    "inspect": ("dlmc.cli.inspect", "Show what a bundle or an engine is, and if it runs here."),
    "recipes": ("dlmc.cli.recipes", "List, show, copy and check recipes."),
    "synth": ("dlmc.cli.synth", "Write a random checkpoint with the shapes of a recipe."),
    "doctor": ("dlmc.cli.doctor", "Say which targets can build or run on this machine."),
}

# Packages that come with an extra, and which one.
_EXTRAS = {
    "fastapi": "serve",
    "jsonschema": "serve",
    "matplotlib": "validate",
    "onnx": "compile",
    "onnx_ir": "compile",
    "onnxscript": "compile",
    "outlines_core": "serve",
    "polygraphy": "validate",
    "prometheus_client": "serve",
    "safetensors": "compile",
    "starlette": "serve",
    "torch": "compile",
    "uvicorn": "serve",
}

# Typer keeps its command-line parser to itself; this is the parser's base of usage errors.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[1]

_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,  # the plain help is half the start-up time
}


class _Verbs(TyperGroup):
    """Lists verbs by the table and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name, the command behind it and what is left of the arguments."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else _command(name), rest


def _command(verb: str) -> Any:
    module = import_module(VERBS[verb][0])
    own: typer.Typer | None = getattr(module, "app", None)
    if own is None:
        own = typer.Typer(add_completion=False, **_SETTINGS)
        own.command(verb, help=module.command.__doc__)(module.command)
    return get_command(own)


app = typer.Typer(name="dlmc", cls=_Verbs, **_SETTINGS)


def _listed() -> None:
    """Stand in for a verb where only its name and help are wanted."""


for _verb, (_, _help) in VERBS.items():
    app.command(_verb, help=_help)(_listed)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dlmc {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; works with any verb.")
    ] = False,
) -> None:
    """Compile diffusion language models and run them.

    A checkpoint becomes a bundle (export), a bundle becomes an engine (build), an engine makes
    text (run).
    """
    del version, debug  # `run` takes --debug out of the line, wherever it stands
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def describe(error: Exception) -> tuple[str, int]:
    """Return the sentence and the exit status of an error."""
    if isinstance(error, DlmcError):
        return str(error), error.exit_code
    if isinstance(error, _PARSER_ERROR):
        return _usage(error), 2
    if isinstance(error, ModuleNotFoundError) and (package := _package(error)) in _EXTRAS:
        extra = _EXTRAS[package]
        return f"this needs {package}, which is not installed: pip install 'dlmc[{extra}]'", 1
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part), 1
    if isinstance(error, MemoryError):
        return "there is not enough memory: close other programs or use a smaller model", 1
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"internal error ({what}): run again with --debug and report it", 1


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _usage(error: Any) -> str:
    """Say what is wrong with a command line, in our form."""
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "dlmc"
    return f"{message[:1].lower()}{message[1:]}: see {path} --help"


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; errors go to stderr."""
    line, debug = _without_debug(list(arguments))
    try:
        status = get_command(app).main(line, prog_name="dlmc", standalone_mode=False)
    except KeyboardInterrupt:
        return 130
    except typer.Abort:
        return 130
    except Exception as error:  # noqa: BLE001  (whatever it is, the user gets one sentence)
        if _interrupted(error):
            return 130
        if debug:
            traceback.print_exc()
        sentence, status = describe(error)
        typer.echo(f"dlmc: error: {' '.join(sentence.split())}", err=True)
    return status if isinstance(status, int) else 0


def _interrupted(error: BaseException | None) -> bool:
    """Return whether an interrupt is behind an error: a library's import turns it into its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Take ``--debug`` out of a line; what follows ``--`` is not ours."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, rest = arguments[:end], arguments[end:]
    return [one for one in options if one != "--debug"] + rest, "--debug" in options


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack a character of the text
    sys.exit(run(sys.argv[1:]))
