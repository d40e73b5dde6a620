"""A small report of a benchmark with round numbers, for whoever prints or draws one."""

from dlmc.bench.generation import Answer, Generation
from dlmc.bench.isolated import Use
from dlmc.bench.machine import Machine, Noise
from dlmc.bench.memory import Footprint
from dlmc.bench.report import Contender, Report, Speed, Workload, phases
from dlmc.bench.roofline import Floor, Rates
from dlmc.bench.tasks import Score
from dlmc.bench.timing import Forward
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule

SMALL = Profile(batch=1, block=8, cache=32, rows=8)
LONG = Profile(batch=1, block=16, cache=32, rows=1)


def generation(seconds: float) -> Generation:
    """An answer of six tokens in four forwards that took 0.875 s of ``seconds``."""
    forwards = (
        Forward("prefill", 16, 0.25, LONG),
        Forward("denoise", 8, 0.125, SMALL),
        Forward("denoise", 8, 0.25, SMALL),
        Forward("commit", 8, 0.25, SMALL),
    )
    return Generation(Answer((1, 2, 3, 4, 5, 6), forwards), seconds, seconds / 2, (seconds,))


def request(sampler: SamplerConfig, stop: StopRule | None = None) -> Request:
    """Three prompt tokens, at most 64 new ones."""
    return Request((1, 2, 3), 64, sampler, seed=5, stop=stop or StopRule())


GENERATIONS = [generation(1.0), generation(2.0), generation(1.5)]
CONTENDER = Contender(
    name="onnxruntime-cpu",
    precision="float32",
    quantization="none",
    weights=4_000_000,
    rates=Rates(100e9, 20e9, "as measured"),
    speed=Speed.of(GENERATIONS),
    phases=phases([(Use("denoise", SMALL), [0.2])], GENERATIONS, [Floor(0.1, "memory")]),
    scores=(Score("sorting", 4, 3, 2.0, 50.0),),
    footprint=Footprint(5_000_000, 6_000_000, 4_500_000, 8_000_000, 0.25),
    faster=2.5,
)
BASELINE = Contender(
    name="torch float32",
    precision="float32",
    quantization="none",
    weights=4_000_000,
    rates=None,
    speed=Speed.of([generation(4.0)]),
    phases=phases([], [generation(4.0)], []),
)
REPORT = Report(
    bundle="tiny",
    machine=Machine("a processor", 2, None, "Linux", "3.11"),
    noise=Noise(0.0, 0.0, 2),
    workload=Workload.of(request(SamplerConfig()), 8, 3),
    contenders=(CONTENDER, BASELINE),
)
