import pytest
import speaking

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.generate import Generator
from dlmc_runtime.scheduler import Scheduler
from dlmc_runtime.serve import fim
from dlmc_runtime.serve.fim import FimBody
from dlmc_runtime.serve.models import Catalog, Served, Site

STOP = speaking.STOP
SPAN = {"prompt": "a", "suffix": "b"}


class Filler:
    """A model behind an application."""

    def __init__(self, running):
        self.running, self.text = running, running.served.text

    def says(self, said, at):
        speaking.say(self.running.engine, self.text, said, at)

    def fill(self, **fields):
        response = self.running.post("/v1/fim/completions", {"model": "test", **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def refusal(self, **fields):
        return self.running.refusal("/v1/fim/completions", {"model": "test", **fields})


@pytest.fixture(scope="module")
def models(manifest, scripted):
    return {
        "full": speaking.generator("base", manifest, scripted, "full"),
        "code": speaking.generator("code", manifest, scripted),
        "block": speaking.generator("base", manifest, scripted),
    }


@pytest.fixture
def filler(models, serving):
    return lambda name: Filler(serving(models[name]))


def test_a_model_that_sees_everything_fills_a_span(filler):
    full = filler("full")
    full.says("return n * 2", 4)
    body = full.fill(prompt="def ", suffix="\nprint()", max_tokens=20)
    assert body["object"] == "text_completion"
    (choice,) = body["choices"]
    assert choice["text"] == "return n * 2"
    assert (choice["index"], choice["finish_reason"]) == (0, "stop")
    assert "slots" not in choice
    assert body["usage"]["prompt_tokens"] == len("def \nprint()")
    assert (
        full.fill(prompt="def ", suffix="x", stop=["2", " *"])["choices"][0]["text"] == "return n"
    )


def test_special_tokens_around_a_span_are_text(filler):
    full = filler("full")
    body = full.fill(prompt=STOP, suffix=STOP, max_tokens=2)
    assert body["usage"]["prompt_tokens"] == 2 * len(STOP)


def test_a_tokenizer_may_have_tokens_that_ask_for_a_middle(filler):
    code = filler("code")
    code.says("return n", len("def ") + len("end") + 3)
    body = code.fill(prompt="def ", suffix="end")
    assert body["choices"][0]["text"] == "return n"
    assert body["usage"]["prompt_tokens"] == len("def end") + 3
    code.says("x", 4)
    assert code.fill(prompt="def ", max_tokens=1)["choices"][0]["text"] == "x"


@pytest.mark.parametrize(
    ("manner", "order"),
    [
        ("code", ["<|fim_prefix|>", *"ab", "<|fim_suffix|>", "c", "<|fim_middle|>"]),
        ("seed", ["<[fim-suffix]>", "c", "<[fim-prefix]>", *"ab", "<[fim-middle]>"]),
    ],
)
def test_a_middle_is_asked_for_in_the_order_that_was_taught(manifest, scripted, manner, order):
    generator = speaking.generator(manner, manifest, scripted)
    served = Served("test", generator, Scheduler(generator))
    body = FimBody.model_validate({"model": "test", "prompt": "ab", "suffix": "c"})
    (request,) = fim._plan(served, body, Site(Catalog([served]))).requests
    assert [served.token(token) for token in request.prompt] == order


def test_a_model_that_can_do_neither_says_so(filler):
    status, param, message = filler("block").refusal(prompt="def ", suffix="end")
    assert (status, param) == (400, "suffix")
    assert "sees nothing after the block it denoises" in message


def test_slots_are_filled_by_name(filler, read_events):
    full = filler("full")
    full.says("Ada", len("Dear "))
    fields = {"template": "Dear <slot name=who max=8/>, <slot name=bye max=2/>"}
    (choice,) = full.fill(**fields)["choices"]
    assert choice["slots"] == {"who": "Ada", "bye": ""}
    assert choice["text"] == "Dear Ada, "
    both = full.fill(**fields, n=2, seed=1)["choices"]
    assert [one["slots"]["who"] for one in both] == ["Ada", "Ada"]
    response = full.running.post(
        "/v1/fim/completions",
        {"model": "test", **fields, "stream": True, "diffusing": True,
         "stream_options": {"include_usage": True}},
    )  # fmt: skip
    *canvases, last, usage, done = read_events(response)
    assert done == "[DONE]"
    assert canvases
    assert all(event["choices"][0]["text"] == "" for event in canvases)
    assert canvases[-1]["diffusion"]["tokens"][0]["text"] == "D"
    assert last["choices"][0] == choice
    assert usage["usage"]["completion_tokens"] == 10


def test_a_middle_that_is_generated_is_streamed(filler, read_events):
    code = filler("code")
    code.says("return n", 6)
    fields = {"model": "test", "prompt": "a", "suffix": "bc", "stream": True}
    events = read_events(code.running.post("/v1/fim/completions", fields))
    assert events[-1] == "[DONE]"
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "return n"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({}, "prompt", "either prompt or template"),
        ({"prompt": "a", "template": "<slot name=a/>"}, "prompt", "either prompt or template"),
        ({"template": "<slot name=a/>", "suffix": "b"}, "suffix", "goes without a template"),
        ({"template": "<slot name=a/>", "max_tokens": 5}, "max_tokens", "how long they may be"),
        ({"template": "<slot name=a>"}, "template", "is no slot"),
        ({"prompt": "a", "suffix": "b", "max_tokens": 5000}, "max_tokens", "exceed the context"),
        ({"prompt": "a" * 5000, "suffix": "b"}, "prompt", "exceed the context"),
        ({**SPAN, "diffusion": {"ignore_eos": True}}, "diffusion.ignore_eos", "length"),
        ({"prompt": "a", "logprobs": 2}, "logprobs", "not supported"),
        ({**SPAN, "diffusion": {"sampler": "renoise"}}, "diffusion.sampler", "renoise"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(filler, fields, param, said):
    status, found, message = filler("full").refusal(**fields)
    assert (status, found) == (400, param)
    assert said in message


def test_spans_that_grow_are_filled_one_position_a_forward(manifest, scripted, serving):
    expand = {"expand": 1, "delete": 2}
    grows = speaking.generator("base", manifest, scripted, "full", tokens=expand)
    filler = Filler(serving(grows))
    status, param, _ = filler.refusal(prompt="a", suffix="b", reasoning_effort="low")
    assert (status, param) == (400, "reasoning_effort")
    filler.says("hello world", 1)
    text = filler.fill(prompt="a", suffix="b", max_tokens=5)["choices"][0]["text"]
    assert text == "hello"


@pytest.mark.slow
def test_the_tiny_llada_fills_slots_as_it_does_without_a_server(tiny_bundle, serving):
    folder = tiny_bundle("tiny-llada")
    build_engine(plan_build(folder, "onnxruntime-cpu", ProfileRequest()))
    template = "1+2=<slot name=sum max=2/>, 2+2=<slot name=other max=3/>"
    with Generator.load(folder) as generator:
        alone = generator.infill("1+2=<mask:2>, 2+2=<mask:3>")
        running = serving(generator)
        answer = running.post("/v1/fim/completions", {"model": "test", "template": template})
        (choice,) = answer.json()["choices"]
        middle = running.post(
            "/v1/fim/completions",
            {"model": "test", "prompt": "1+2=", "suffix": ", 2+2=4", "max_tokens": 2},
        )
    for text, span in zip(choice["slots"].values(), alone.spans, strict=True):
        assert span.startswith(text)
    assert choice["text"] == "1+2={sum}, 2+2={other}".format(**choice["slots"])
    assert middle.json()["usage"]["completion_tokens"] == 2
