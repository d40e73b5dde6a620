"""A small report of a load with round numbers."""

from dlmc.bench.load import Ask, Call
from dlmc.bench.machine import Machine, Noise
from dlmc.bench.served import Comparison, ServingReport, Sharing, Side

ASKS = [Ask("a", 0, "A"), Ask("b", 1, "B"), Ask("c", 2)]


def alone() -> list[Call]:
    """Three answers, one after another, in six seconds."""
    return [
        Call(2.0 * i, 2.0 * i + 2, 2.0 * i, 2.0 * i + 1, 12, 4, made=(i,), text="ABC"[i])
        for i in range(3)
    ]


def together() -> list[Call]:
    """Two of them in two seconds, one of them another one, and one refused."""
    return [
        Call(0.0, 1.5, 0.25, 0.75, 12, 4, 4, made=(0,), text="A"),
        Call(0.5, 2.0, 0.75, 1.25, 12, 4, made=(9,), text="?"),
        Call(0.5, 0.5, error="OverloadError"),
    ]


def sharing() -> Sharing:
    """Five forwards of two rows, six of them in use."""
    return Sharing({"denoise": 4, "prefill": 1}, 6, 10, 1.8, 2.0)


REPORT = ServingReport(
    bundle="tiny",
    engine="onnxruntime-cpu",
    machine=Machine("a processor", 2, None, "Linux", "3.11"),
    max_new_tokens=64,
    sampler={"name": "low_confidence", "steps": 8},
    seed=5,
    found=Comparison(
        rate=1.0,
        concurrency=None,
        rounds=1,
        noise=Noise(0.1, 0.01, 2),
        alone=Side.of([alone()], ASKS),
        together=Side.of([together()], ASKS),
        sharing=sharing(),
        same=1,
        ratios=(2.0,),
    ),
)
