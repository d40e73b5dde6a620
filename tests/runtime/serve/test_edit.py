import pytest
import speaking

from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import edit
from dlmc_runtime.serve.fields import room
from dlmc_runtime.serve.models import Served

CODE = (
    "<|recently_viewed_code_snippets|>\n<|/recently_viewed_code_snippets|>\n"
    "<|current_file_content|>\ncurrent_file_path: a.py\n"
    "<|code_to_edit|>\nx = <|cursor|>\n<|/code_to_edit|>\n<|/current_file_content|>\n"
    "<|edit_diff_history|>\n<|/edit_diff_history|>"
)


CROSSED = "<|current_file_content|><|code_to_edit|>x<|/current_file_content|><|/code_to_edit|>"


@pytest.fixture(scope="module")
def generator(manifest, scripted):
    return speaking.generator("hermes", manifest, scripted)


@pytest.fixture
def editor(generator, serving):
    return serving(generator)


def body(content=CODE, **fields):
    return {"model": "test", "messages": [{"role": "user", "content": content}], **fields}


def test_an_edit_is_a_chat_completion(editor):
    prompt = f"<|im_start|>user\n{CODE}<|im_end|>\n<|im_start|>assistant\n"
    at = len(editor.served.text.encode(prompt))
    speaking.say(editor.engine, editor.served.text, "x = 1", at)
    response = editor.post("/v1/edit/completions", body(seed=1)).json()
    assert response["object"] == "chat.completion"
    assert response["choices"][0]["message"] == {"role": "assistant", "content": "x = 1"}
    assert response["usage"]["prompt_tokens"] == at


@pytest.mark.parametrize(
    ("fields", "temperature"),
    [
        ({}, 0.2),
        ({"temperature": 0.5}, 0.5),
        ({"diffusion": {"sampler": "credit"}}, 0.0),
    ],
)
def test_the_temperature_is_low_where_there_is_one(editor, monkeypatch, fields, temperature):
    seen = []
    request = editor.served.generator.request

    def note(*args, **more):
        seen.append((more["sampler"].temperature, more["max_new_tokens"]))
        return request(*args, **more)

    monkeypatch.setattr(editor.served.generator, "request", note)
    assert editor.post("/v1/edit/completions", body(max_tokens=8, **fields)).status_code == 200
    assert seen == [(temperature, 8)]


@pytest.mark.parametrize(("default", "most"), [(256, 256), (1 << 16, edit.MAX_TOKENS)])
def test_an_edit_is_as_long_as_the_model_s_answers_but_within_the_limit(
    manifest, scripted, monkeypatch, default, most
):
    generator = speaking.generator("hermes", manifest, scripted, max_new_tokens=default)
    served = Served("test", generator, Scheduler(generator))
    monkeypatch.setattr(Served, "context", 1 << 17)
    assert room(served, 100, edit._Conversation.model_construct()) == most


def test_a_message_that_leaves_little_room_gets_a_short_edit(editor):
    """The default is cut to what the context leaves, as everywhere."""
    long = CODE.replace("x = ", "x = 1\n" * 270)
    used = editor.post("/v1/edit/completions", body(long, max_tokens=1)).json()["usage"]
    left = editor.served.context - used["prompt_tokens"]
    assert left < editor.served.generator.manifest.max_new_tokens
    assert editor.post("/v1/edit/completions", body(long)).status_code == 200
    assert (
        editor.refusal("/v1/edit/completions", body(long, max_tokens=left + 1))[1] == "max_tokens"
    )


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"stream": True}, "stream", "not supported"),
        ({"tools": [{}]}, "tools", "not supported"),
        ({"n": 2}, "n", "not supported"),
        ({"max_tokens": edit.MAX_TOKENS + 1}, "max_tokens", "8192"),
        ({"content": "x = 1"}, "messages", "no section <|code_to_edit|>"),
        ({"content": "<|code_to_edit|>x"}, "messages", "<|code_to_edit|> has no end"),
        ({"content": "<|/code_to_edit|>x"}, "messages", "closes nothing"),
        ({"content": CROSSED}, "messages", "<|/current_file_content|> closes nothing"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(editor, fields, param, said):
    status, found, message = editor.refusal("/v1/edit/completions", body(**fields))
    assert (status, found) == (400, param)
    assert said in message


def test_there_is_one_message_and_it_is_the_user_s(editor):
    two = body()["messages"] * 2
    assert editor.refusal("/v1/edit/completions", {**body(), "messages": two})[1] == "messages"
    system = [{"role": "system", "content": CODE}]
    status, param, message = editor.refusal("/v1/edit/completions", {**body(), "messages": system})
    assert (status, param) == (400, "messages")
    assert "role user" in message
