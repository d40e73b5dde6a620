import json
import re

import pytest

from dlmc.cli.chat import ChatOptions, Question, read_question, template_variables
from dlmc_runtime.errors import UsageError

TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% if enable_thinking %}<think>"
    "{% endif %}{{ effort }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.fixture
def file(tmp_path):
    """Write a JSON file and return its name."""

    def write(value, name="file.json"):
        path = tmp_path / name
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return str(path)

    return write


@pytest.fixture
def thinker(generator, tmp_path):
    """A generator whose template knows tools and thinking."""
    from dlmc_runtime.template import ChatTemplate

    generator.text._template = ChatTemplate(TEMPLATE, "chat.jinja", {})
    return generator


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [((), "<user>hi<assistant>yes?"), (("go",), "<user>hi<assistant>yes?<user>go")],
)
def test_a_conversation_comes_from_a_file(dlmc, thinker, file, prompt, asked):
    outcome = dlmc("run", "bundle", *prompt, "--messages", file(TALK))
    assert (outcome.status, outcome.err) == (0, "")
    assert thinker.prompt == asked


def test_a_conversation_comes_from_stdin(dlmc, thinker, stdin):
    stdin(json.dumps(TALK).encode())
    dlmc("run", "bundle", "--messages", "-")
    assert thinker.prompt == "<user>hi<assistant>yes?"


def test_tools_and_variables_reach_the_template(dlmc, thinker, file):
    options = ("--tools", file(TOOLS), "--thinking", "--template-arg", "effort=low")
    assert dlmc("run", "bundle", "go", *options).status == 0
    assert thinker.prompt == "[f]<think>low<user>go"
    dlmc("run", "bundle", "go", "--no-thinking", "--system", "be")
    assert thinker.prompt == "<system>be<user>go"


def test_a_conversation_may_come_before_a_template_to_fill(dlmc, thinker, file):
    assert dlmc("run", "bundle", "--messages", file(TALK), "--infill", "<mask:3>").status == 0
    assert thinker.prompt[0] == "<user>hi<assistant>yes?"


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--thinking"], "enable_thinking"), (["--template-arg", "effort=low"], "effort")],
)
def test_what_a_template_does_not_look_at_is_refused(dlmc, generator, options, name):
    outcome = dlmc("run", "bundle", "hi", *options)
    assert outcome.status == 2
    assert f"this bundle's chat template does not look at {name}: it reads " in outcome.err


def test_tools_that_a_template_does_not_look_at_are_refused(dlmc, generator, file):
    assert "does not look at tools" in dlmc("run", "bundle", "hi", "--tools", file(TOOLS)).err


@pytest.mark.parametrize("options", [["--thinking"], ["--template-arg", "effort=low"]])
def test_variables_need_a_template(dlmc, generator, options):
    generator.text._template = None
    assert "has no chat template" in dlmc("run", "bundle", "hi", *options).err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'[{"role": "user", "role": "user"}]', "is ambiguous (it has 'role' twice)"),
        ({"messages": TALK}, "is not a JSON list: --messages wants one"),
        ([], "there are no messages"),
        (["hi"], "messages are not a list of mappings"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0] is an image: this version takes text only",
        ),
    ],
)
def test_a_bad_conversation_is_found_before_the_bundle_is_opened(dlmc, file, content, said):
    outcome = dlmc("run", "no-such-bundle", "--messages", file(content))
    assert outcome.status in (1, 2)
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(TOOLS[0], "is not a JSON list"), ([{"name": "f"}], "tools[0] is no function")],
)
def test_bad_tools_are_found_before_the_bundle_is_opened(dlmc, file, content, said):
    outcome = dlmc("run", "no-such-bundle", "hi", "--tools", file(content))
    assert outcome.status == 2
    assert said in outcome.err


def test_files_are_read_up_to_a_limit(dlmc, file, monkeypatch):
    monkeypatch.setattr("dlmc.cli.chat.MAX_PROMPT_BYTES", 8)
    assert "exceeds 8 bytes" in dlmc("run", "bundle", "--messages", file(TALK)).err


def test_a_missing_file_is_named(dlmc):
    outcome = dlmc("run", "bundle", "hi", "--tools", "no-such.json")
    assert outcome.status == 2
    assert "no-such.json cannot be read (No such file or directory)" in outcome.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"chat": False, "thinking": True}, "--thinking needs a chat"),
        ({"chat": False, "messages": "x"}, "--messages needs a chat"),
        ({"system": "be", "messages": "x"}, "--system goes without --messages"),
        ({"thinking": True, "template_args": ["enable_thinking=false"]}, "is given twice"),
    ],
)
def test_options_may_contradict_each_other(options, said):
    with pytest.raises(UsageError, match=said):
        read_question("hi", ChatOptions(**options))


def test_stdin_is_read_once():
    with pytest.raises(UsageError, match="stdin cannot be both"):
        read_question("-", ChatOptions(messages="-"))


def test_variables_are_json_or_text():
    given = ["a=true", "b=low", 'c={"d": [1]}', "e=", "f=x=y"]
    assert template_variables(given) == {
        "a": True,
        "b": "low",
        "c": {"d": [1]},
        "e": "",
        "f": "x=y",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a"], "--template-arg a names no variable"),
        (["=1"], "names no variable"),
        (["a b=1"], "names no variable"),
        (["self=1"], "names no variable"),
        (["x" * 99], "..."),
        (["messages=[]"], "--template-arg cannot give messages: use --messages"),
        (["tools=[]"], "use --tools"),
        (["a=1", "a=2"], "a is given twice"),
        (["a=" + "[" * 100_000], "nested too deeply"),
        (["a=" + "[" * 99 + "]" * 99], "nested more than 64 deep"),
    ],
)
def test_what_is_no_variable_is_refused(given, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        template_variables(given)


def test_a_bundle_without_a_tokenizer_gets_the_prompt():
    assert Question("hi").render(None) == "hi"
    with pytest.raises(UsageError, match="no chat template"):
        Question("hi", chat=True).render(None)
