import json
from types import SimpleNamespace

import pytest

from dlmc.bench import rates
from dlmc.bench.roofline import Rates


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure a little only."""
    monkeypatch.setattr(rates, "_SIDE", 64)
    monkeypatch.setattr(rates, "_STREAM", 1 << 12)
    monkeypatch.setattr(rates, "_SECONDS", 0.0)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_the_best_of_what_is_installed(kind):
    found = rates.here(kind, "cpu")
    assert found is not None
    assert found.flops > 0
    assert found.bandwidth > 0
    assert f"{kind} products of 64x64" in found.how


def test_numpy_alone_measures_float32(monkeypatch):
    monkeypatch.setattr(rates, "find_spec", lambda name: None)
    found = rates.here("float32", "cpu")
    assert found is not None
    assert found.how.startswith("numpy float32")
    assert rates.here("bfloat16", "cpu") is None


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(rates, "_cuda", lambda: False)
    assert rates.here("float32", "cuda") is None


def test_a_type_without_a_kernel(monkeypatch):
    def refuse(function):
        raise NotImplementedError

    monkeypatch.setattr(rates, "_best", refuse)
    assert rates._torch_products("int8", "cpu") is None


@pytest.mark.parametrize(
    ("precision", "quantization", "device", "asked"),
    [
        ("float32", "none", "cpu", ("float32", "cpu")),
        ("float32", "int4", "cpu", ("float32", "cpu")),
        ("float32", "w8a8", "cpu", ("int8", "cpu")),
        ("float16", "none", "NVIDIA L4", ("float16", "cuda")),
    ],
)
def test_what_a_child_is_asked_for(precision, quantization, device, asked, monkeypatch):
    seen = []

    def run_child(module, *arguments):
        seen.append(arguments)
        return vars(Rates(2.0, 1.0, "how"))

    monkeypatch.setattr(rates, "run_child", run_child)
    assert rates.measure(precision, quantization, device) == Rates(2.0, 1.0, "how")
    assert seen == [asked]


def test_a_child_that_cannot_measure(monkeypatch):
    monkeypatch.setattr(rates, "run_child", lambda *_: json.loads("null"))
    assert rates.measure("float16", "none", "cpu") is None


def test_the_least_of_at_least_three_calls(monkeypatch):
    now = iter([0.0, 5.0, 5.0, 8.0, 8.0, 12.0])
    monkeypatch.setattr(rates, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    calls = []
    assert rates._best(lambda: calls.append(1)) == 3.0
    assert len(calls) == 4
