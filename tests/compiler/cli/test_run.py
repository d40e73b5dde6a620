import pytest

from dlmc.cli.chat import MAX_PROMPT_BYTES
from dlmc_runtime.infill import Hole
from dlmc_runtime.samplers.config import SamplerConfig


def test_a_pipe_gets_only_the_answer(dlmc, generator):
    outcome = dlmc("run", "bundle", "hi")
    assert (outcome.status, outcome.out, outcome.err) == (0, "grün\n", "")
    assert generator.closed


def test_a_terminal_gets_a_stream_and_the_speed(dlmc, generator, monkeypatch):
    monkeypatch.setattr("dlmc.cli.run.on_terminal", lambda: True)
    outcome = dlmc("run", "bundle", "hi")
    assert outcome.out == "grün\n"
    assert outcome.err == (
        "5 tokens in 3 forwards, 1.67 tokens per forward, 10.0 tokens per second (stop)\n"
    )


def test_a_watched_answer_cannot_steer_the_terminal(dlmc, generator, monkeypatch):
    monkeypatch.setattr("dlmc.cli.run.on_terminal", lambda: True)
    monkeypatch.setattr("dlmc.cli.run.harmless", lambda text: f"<{text}>")
    assert dlmc("run", "bundle", "hi", "--watch").out == "<grün>\n"


@pytest.mark.parametrize("option", ["-v", "--stats"])
def test_the_speed_can_be_asked_for(dlmc, generator, option):
    assert "5 tokens in 3 forwards" in dlmc("run", "bundle", "hi", option).err


def test_json_is_one_object(dlmc, generator):
    outcome = dlmc("run", "bundle", "hi", "--json", "--seed", "7", "--temperature", "0.5")
    assert outcome.err == ""
    assert outcome.json["text"] == "grün"
    assert len(outcome.json["tokens"]) == 5
    assert {k: v for k, v in outcome.json.items() if k not in ("text", "tokens", "sampler")} == {
        "prompt_tokens": len("<user>hi<assistant>"),
        "forwards": 3,
        "finish_reason": "stop",
        "seconds": 0.5,
        "spans": [],
        "cached_tokens": 0,
        "logprobs": [],
        "tokens_per_forward": pytest.approx(5 / 3),
        "tokens_per_second": 10.0,
        "seed": 7,
    }
    assert outcome.json["sampler"]["name"] == "low_confidence"
    assert outcome.json["sampler"]["temperature"] == 0.5


def test_options_reach_the_generator(dlmc, generator):
    dlmc(
        *("run", "bundle", "hi", "--max-new-tokens", "9", "--seed", "3", "--ignore-eos"),
        *("--stop", "a", "--stop", "b", "--threshold", "0.7"),
    )
    assert generator.options == {
        "max_new_tokens": 9,
        "sampler": SamplerConfig(threshold=0.7),
        "seed": 3,
        "stop": ["a", "b"],
        "ignore_eos": True,
        "skip_special_tokens": True,
        "constraint": None,
    }


class Constraints:
    def json_schema(self, description):
        return ("schema", description)

    def regex(self, pattern):
        return ("regex", pattern)


def test_an_answer_may_have_to_match(dlmc, generator, tmp_path):
    generator.constraints = Constraints()
    dlmc("run", "bundle", "hi", "--regex", "a+")
    assert generator.options["constraint"] == ("regex", "a+")
    file = tmp_path / "schema.json"
    file.write_text('{"type": "null"}')
    dlmc("run", "bundle", "hi", "--json-schema", str(file))
    assert generator.options["constraint"] == ("schema", {"type": "null"})
    both = dlmc("run", "bundle", "hi", "--json-schema", str(file), "--regex", "a")
    assert "two constraints" in both.err
    file.write_text("{")
    assert "is no JSON" in dlmc("run", "bundle", "hi", "--json-schema", str(file)).err
    missing = dlmc("run", "bundle", "hi", "--json-schema", str(tmp_path / "missing.json"))
    assert "cannot be read" in missing.err


def test_special_tokens_are_shown_where_asked_for(dlmc, generator):
    dlmc("run", "bundle", "hi", "--special-tokens")
    assert generator.options["skip_special_tokens"] is False


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ([], "<user>hi<assistant>"),
        (["--chat"], "<user>hi<assistant>"),
        (["--system", "be"], "<system>be<user>hi<assistant>"),
        (["--no-chat"], "hi"),
    ],
)
def test_the_prompt_is_rendered_where_there_is_a_template(dlmc, generator, options, prompt):
    assert dlmc("run", "bundle", "hi", *options).status == 0
    assert generator.prompt == prompt


@pytest.mark.parametrize("option", [["--chat"], ["--system", "x"]])
def test_a_chat_needs_a_template(dlmc, generator, option):
    generator.text._template = None
    assert "has no chat template" in dlmc("run", "bundle", "hi", *option).err
    assert dlmc("run", "bundle", "hi").status == 0
    assert generator.prompt == "hi"


@pytest.mark.parametrize("arguments", [[], ["-"]])
@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_stdin_is_the_prompt(dlmc, generator, stdin, arguments, ending):
    stdin("zwei\nZeilen ü".encode() + ending)
    assert dlmc("run", "bundle", *arguments, "--no-chat").status == 0
    assert generator.prompt == "zwei\nZeilen ü"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"ab\xff", "standard input is not UTF-8 at byte 2: convert it first"),
        (b"", "the prompt is empty"),
        (b"\n", "the prompt is empty"),
        (b"a" * (MAX_PROMPT_BYTES + 1), "the prompt exceeds"),
    ],
)
def test_bad_stdin_is_a_usage_error(dlmc, generator, stdin, data, sentence):
    stdin(data)
    outcome = dlmc("run", "bundle")
    assert outcome.status == 2
    assert outcome.err.startswith(f"dlmc: error: {sentence}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "0"], "steps is 0"),
        (["--threshold", "1.5"], "threshold is 1.5"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--sampler", "greedy"], "no sampler is called 'greedy'"),
        (["--system", "x", "--no-chat"], "--system needs a chat"),
    ],
)
def test_bad_options_are_found_before_the_bundle_is_opened(dlmc, options, sentence):
    outcome = dlmc("run", "no-such-bundle", "hi", *options)
    assert outcome.status == 2
    assert outcome.err.startswith(f"dlmc: error: {sentence}")


def test_no_prompt_on_a_terminal_is_a_usage_error(dlmc, stdin, monkeypatch):
    stdin(b"")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    outcome = dlmc("run", "bundle")
    assert outcome.status == 2
    assert "there is no prompt" in outcome.err


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_no_prompt_on_a_closed_stdin_is_a_usage_error(dlmc, monkeypatch, arguments):
    monkeypatch.setattr("sys.stdin", None)
    outcome = dlmc("run", "bundle", *arguments)
    assert outcome.status == 2
    assert "there is no prompt" in outcome.err


def test_a_missing_bundle_is_one_sentence(dlmc):
    outcome = dlmc("run", "no-such-bundle", "hi")
    assert outcome.status == 1
    assert "no-such-bundle" in outcome.err


def test_watch_prints_one_line_per_forward_in_a_pipe(dlmc, generator):
    outcome = dlmc("run", "bundle", "hi", "--watch")
    assert outcome.out == "grün\n"
    assert outcome.err.splitlines() == [
        "forward 1: 2 of 5 positions, 2.00 tokens per forward: gr░░░",
        "forward 2: 4 of 5 positions, 2.00 tokens per forward: grü░",
        "forward 3: 5 of 5 positions, 1.67 tokens per forward: grün",
    ]


def test_a_template_is_filled(dlmc, generator):
    outcome = dlmc("run", "bundle", "--infill", "a<mask:3>b", "--seed", "3", "--cache", "dual")
    assert (outcome.status, outcome.out) == (0, "grün\n")
    assert generator.prompt == "a<mask:3>b"
    assert generator.options == {
        "max_new_tokens": None,
        "sampler": SamplerConfig(threshold=0.9, cache="dual"),
        "seed": 3,
    }


def test_a_template_may_follow_a_prompt(dlmc, generator):
    dlmc("run", "bundle", "hi", "--infill", "a<mask:3>b")
    assert generator.prompt == ["<user>hi<assistant>", "a", Hole(3), "b"]
    dlmc("run", "bundle", "hi", "--no-chat", "--infill", "<mask:3>")
    assert generator.prompt == ["hi", Hole(3)]
    dlmc("run", "bundle", "--no-chat", "--infill", "<mask:3>")
    assert generator.prompt == "<mask:3>"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (["--chat"], "--chat needs a prompt"),
        (["--system", "be"], "--system needs a prompt"),
        (["--stop", "x"], "--infill goes without --stop"),
        (["hi", "--ignore-eos"], "--infill goes without --ignore-eos"),
    ],
)
def test_a_template_goes_without_what_is_for_answers(dlmc, generator, others, said):
    outcome = dlmc("run", "bundle", *others, "--infill", "a<mask:3>b")
    assert outcome.status == 2
    assert said in outcome.err


def test_any_parameter_can_be_set(dlmc, generator):
    dlmc(
        *("run", "bundle", "hi", "--sampler", "entropy", "--set", "eps=0.01"),
        *("--set", "schedule=linear", "--set", "defer_ids=3,4", "--set", "steps=7"),
    )
    assert generator.options["sampler"] == SamplerConfig(
        "entropy", eps=0.01, schedule="linear", defer_ids=(3, 4), steps=7
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eps", "names no parameter"),
        ("nothing=1", "names no parameter"),
        ("name=random", "names no parameter"),
        ("=1", "names no parameter"),
        ("eps=much", "give a number"),
        ("steps=1.5", "give a whole number"),
        ("steps=1_0", "give a whole number"),
        ("steps=\u0663", "give a whole number"),
        ("eps=nan", "give a number"),
        ("top_k=" + "9" * 400, "9..."),
        ("defer_ids=a", "give ids"),
        ("schedule=later", "it must be one of uniform"),
        ("gamma=1", "takes no gamma"),
    ],
)
def test_what_cannot_be_set_is_refused_before_a_bundle_loads(dlmc, text, said):
    outcome = dlmc("run", "no-such-bundle", "hi", "--sampler", "low_confidence", "--set", text)
    assert outcome.status == 2
    assert said in outcome.err


@pytest.mark.parametrize(
    "options",
    [["--set", "eps=0.1", "--set", "eps=0.2"], ["--steps", "5", "--set", "steps=2"]],
)
def test_a_parameter_is_given_once(dlmc, options):
    outcome = dlmc("run", "no-such-bundle", "hi", *options)
    assert outcome.status == 2
    assert "is given twice" in outcome.err
