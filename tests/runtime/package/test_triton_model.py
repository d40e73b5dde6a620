import asyncio
import json
import os
import sys
import time
from types import SimpleNamespace

import fake_triton
import pytest
from fake_triton import Request, TritonError

from dlmc_runtime.errors import UsageError
from dlmc_runtime.package import hosted, loading
from dlmc_runtime.package.exchange import Exchange
from dlmc_runtime.package.triton_model import TritonPythonModel, read_options


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton)


def arguments(root, target="onnxruntime-cpu", **others):
    config = {"parameters": {"target": {"string_value": target}}}
    return {
        "model_repository": str(root),
        "model_version": "1",
        "model_name": "tiny",
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
        **others,
    }


@pytest.fixture
def model(backend, packaged):
    made = TritonPythonModel()
    made.initialize(arguments(packaged("triton") / "tiny"))
    yield made
    made.finalize()


# Goes on to the end of the context.
LONG = {"prompt": "7*6=", "max_tokens": 150, "diffusion": {"ignore_eos": True}}


def served(model):
    (found,) = loading.loaded(model._hosted.app)
    return found


def statistics(model):
    return served(model).scheduler.statistics()


def text(responses):
    return "".join(one["text_output"] for one in responses)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_share_forwards_and_are_answered_as_if_alone(model, alone, stream):
    requests = {
        prompt: Request(request=json.dumps({"prompt": prompt, "stream": stream}))
        for prompt in alone
    }
    model.execute(list(requests.values()))
    answers = {prompt: request.sender.wait() for prompt, request in requests.items()}
    assert {prompt: text(answer) for prompt, answer in answers.items()} == alone
    assert all((len(answer) > 1) == stream for answer in answers.values())
    seen = statistics(model)
    assert seen.rows_fed > sum(seen.forwards.values())  # some forward had more than one row


def test_a_prompt_with_parameters_is_answered(model, alone):
    prompt, expected = next(iter(alone.items()))
    request = Request({"max_tokens": 48, "temperature": 0.0}, text_input=prompt)
    model.execute([request])
    (answer,) = request.sender.wait()
    assert answer["text_output"] == expected
    assert json.loads(answer["event"])["model"] == "tiny"


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request(request='{"prompt": "a", "foo": 1}'), "foo is not supported here"),
        (Request(request="nope"), "the body is not JSON"),
        (Request({"n": 0}, text_input="a"), "n: "),
        (Request(), "exclude each other"),
        (Request({"frob": True}, text_input="a"), "frob is not supported here"),
    ],
)
def test_what_cannot_be_served_is_an_error_of_the_client(model, request_, sentence):
    model.execute([request_])
    with pytest.raises(TritonError, match=sentence) as caught:
        request_.sender.wait()
    assert caught.value.code == TritonError.INVALID_ARG


def test_another_model_is_not_found(model):
    request = Request(request='{"prompt": "a", "model": "large"}')
    model.execute([request])
    with pytest.raises(TritonError, match="large") as caught:
        request.sender.wait()
    assert caught.value.code == TritonError.NOT_FOUND


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_request_leaves_and_others_stay(model, alone, monkeypatch, stream):
    prompt, expected = next(iter(alone.items()))
    gone = Request(request=json.dumps({**LONG, "stream": stream}))
    gone.sender.cancelled = True
    engine = served(model).generator.engine
    forward = engine.forward

    def late(*given):
        assert gone.sender.ended.wait(fake_triton.WAIT)
        return forward(*given)

    monkeypatch.setattr(engine, "forward", late)
    stays = Request(request=json.dumps({"prompt": prompt}))
    model.execute([gone, stays])
    assert text(stays.sender.wait()) == expected
    assert served(model).scheduler.wait(fake_triton.WAIT)
    assert statistics(model).cancelled == 1


def test_a_defect_is_told_without_its_insides(model, monkeypatch, caplog):
    def broken(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("dlmc_runtime.package.triton_model.read_call", broken)
    request = Request(text_input="a")
    model.execute([request])
    with pytest.raises(TritonError, match="made a mistake") as caught:
        request.sender.wait()
    assert caught.value.code == TritonError.INTERNAL
    assert "secret" not in caught.value.message
    assert "secret" in caplog.text


def test_stopping_waits_for_answers(backend, packaged, alone):
    model = TritonPythonModel()
    model.initialize(arguments(packaged("triton") / "tiny"))
    prompt, expected = next(iter(alone.items()))
    request = Request(request=json.dumps({"prompt": prompt}))
    model.execute([request])
    while not statistics(model).active and not request.sender.ended.is_set():
        time.sleep(0.001)
    model.finalize()
    assert text(request.sender.wait()) == expected


def test_who_is_not_answered_when_the_model_stops_is_told(backend, packaged, monkeypatch):
    async def never(exchange):
        await asyncio.Event().wait()

    monkeypatch.setattr(hosted, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(Exchange, "run", never)
    model = TritonPythonModel()
    model.initialize(arguments(packaged("triton") / "tiny"))
    request = Request(text_input="a")
    model.execute([request])
    model.finalize()
    assert request.sender.ended.is_set()
    with pytest.raises(TritonError, match="shut down") as caught:
        request.sender.wait()
    assert caught.value.code == TritonError.UNAVAILABLE


def test_what_cannot_be_loaded_is_one_sentence(backend, packaged):
    root = packaged("triton") / "tiny"
    with pytest.raises(fake_triton.TritonModelException, match="engine for tensorrt"):
        TritonPythonModel().initialize(arguments(root, "tensorrt"))
    plan = root / "1" / "bundle" / "config.json"
    content = plan.read_bytes()
    plan.unlink()
    plan.write_bytes(bytes(len(content)))
    with pytest.raises(fake_triton.TritonModelException, match="another hash"):
        TritonPythonModel().initialize(arguments(root))


@pytest.mark.parametrize(
    ("visible", "device", "chosen"), [(None, "1", "1"), ("2,3", "1", "3"), ("5", "0", "5")]
)
def test_an_instance_sees_the_gpu_that_triton_chose(
    backend, tmp_path, monkeypatch, visible, device, chosen
):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = {"model_instance_kind": "GPU", "model_instance_device_id": device}
    monkeypatch.setattr(loading, "load_app", lambda *_: SimpleNamespace())
    monkeypatch.setattr("dlmc_runtime.package.triton_model.Hosted", lambda app: app)
    try:
        TritonPythonModel().initialize(arguments(tmp_path, **gpu))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == chosen
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)


def parameters(**values):
    return {name: {"string_value": value} for name, value in values.items()}


def test_the_configuration_bounds_what_waits():
    target, limits, settings = read_options(
        parameters(target="tensorrt", max_queue="9", request_seconds="30", EXECUTION_ENV_PATH="/x")
    )
    assert (target, limits.queue, settings.request_seconds) == ("tensorrt", 9, 30.0)


@pytest.mark.parametrize("value", ["0", "-1", "x", "1e3", "٣", "9" * 30, ""])
def test_a_bound_is_a_number(value):
    with pytest.raises(UsageError, match=r"max_queue in config\.pbtxt"):
        read_options(parameters(target="x", max_queue=value))


def test_a_configuration_names_a_target():
    with pytest.raises(UsageError, match="names no target"):
        read_options({})
