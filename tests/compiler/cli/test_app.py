import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dlmc.cli import app
from dlmc_runtime.errors import BundleError, UsageError
from dlmc_runtime.version import __version__

HEAVY = {"huggingface_hub", "numpy", "onnx", "onnxruntime", "rich", "tokenizers", "torch", "yaml"}


@pytest.fixture
def verb(monkeypatch):
    """Put a function in the place of ``dlmc run``."""

    def replace(function):
        module = SimpleNamespace(command=function)
        monkeypatch.setattr(app, "import_module", lambda _: module)

    return replace


def failing(error):
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("line", "more"),
    [(["--help"], {"pydantic"}), (["--version"], {"pydantic"}), ([], set()), (["nonsense"], set())],
)
def test_a_fresh_process_answers_without_heavy_libraries(line, more):
    source = (
        "import json, sys; from dlmc.cli import app; app.run(sys.argv[1:]); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *line], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert not loaded & (HEAVY | more)


def test_help_lists_every_verb(dlmc):
    outcome = dlmc("--help")
    assert outcome.status == 0
    for name, (_, text) in app.VERBS.items():
        assert f"  {name} " in outcome.out
        assert text in outcome.out
    assert dlmc().out == outcome.out


@pytest.mark.parametrize("verb_name", app.VERBS)
def test_every_verb_has_help(dlmc, verb_name):
    outcome = dlmc(verb_name, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: dlmc {verb_name}")


def test_version(dlmc):
    assert dlmc("--version").out == f"dlmc {__version__}\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["nonsense"], "no such command 'nonsense': see dlmc --help"),
        (["rnu"], "no such command 'rnu'. Did you mean 'run'?: see dlmc --help"),
        (["--nonsense"], "no such option: --nonsense"),
        (["run"], "missing argument 'BUNDLE': see dlmc run --help"),
        (["run", "b", "p", "--seed", "x"], "invalid value for '--seed'"),
        (["run", "b", "--xyzzy"], "no such option: --xyzzy: see dlmc run --help"),
        (["recipes", "show"], "missing argument 'RECIPE': see dlmc recipes show --help"),
    ],
)
def test_a_usage_error_is_one_sentence(dlmc, line, sentence):
    outcome = dlmc(*line)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"dlmc: error: {sentence}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (BundleError("it is\nbroken", "export it again"), 1, "it is broken: export it again"),
        (UsageError("steps is 0", "it must be 1"), 2, "steps is 0: it must be 1"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch.nn"),
            1,
            "this needs torch, which is not installed: pip install 'dlmc[compile]'",
        ),
        (FileNotFoundError(2, "No such file", "a/b"), 1, "a/b: No such file"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (MemoryError(), 1, "there is not enough memory"),
        (ValueError("what"), 1, "internal error (ValueError: what): run again with --debug"),
        (KeyError(), 1, "internal error (KeyError): run again with --debug"),
        (ModuleNotFoundError("no", name="dlmc.x"), 1, "internal error (ModuleNotFoundError: no)"),
    ],
)
def test_an_error_is_one_sentence(dlmc, verb, error, status, sentence):
    verb(failing(error))
    outcome = dlmc("run")
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.startswith(f"dlmc: error: {sentence}")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("line", [["--debug", "run"], ["run", "--debug"]])
def test_debug_shows_the_traceback(dlmc, verb, line):
    verb(failing(BundleError("broken")))
    outcome = dlmc(*line)
    assert outcome.status == 1
    assert outcome.err.startswith("Traceback")
    assert outcome.err.endswith("dlmc: error: broken\n")


def test_debug_after_two_dashes_belongs_to_the_verb(dlmc, verb):
    def command(prompt: str) -> None:
        raise UsageError(prompt)

    verb(command)
    assert dlmc("run", "--", "--debug").err == "dlmc: error: --debug\n"


def test_an_interrupt_is_quiet(dlmc, verb):
    verb(failing(KeyboardInterrupt()))
    outcome = dlmc("run")
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "")


@pytest.mark.parametrize("chained", [True, False])
def test_an_interrupt_that_a_library_renames_is_quiet(dlmc, verb, chained):
    def command() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            if chained:
                raise ImportError("initialization failed") from interrupt
            raise ImportError("initialization failed")  # noqa: B904

    verb(command)
    outcome = dlmc("run")
    assert (outcome.status, outcome.err) == (130, "")


def test_a_closed_pipe_is_quiet():
    line = f"{sys.executable} -c 'from dlmc.cli.app import main; main()' recipes show tiny-llada"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line} --json | head -c 1 > /dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


def test_completion_knows_verbs_recipes_and_options():
    def complete(words):
        done = subprocess.run(
            [sys.executable, "-c", "from dlmc.cli.app import main; main()"],
            env={
                "_DLMC_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split(" ")) - 1),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert "recipes" in complete("dlmc re")
    assert "--max-new-tokens" in complete("dlmc run --max")
    assert "tiny/tiny-llada" in complete("dlmc recipes show tiny")
