"""One small bundle with an engine, shared by the tests of this folder, and a trained one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc.validate.recording import Recording, State, record
from dlmc.validate.reference import load_reference
from dlmc.validate.torch_engine import TorchEngine
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.generate import Generator

TARGET = "onnxruntime-cpu"
PROMPT = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, goldens: Path) -> Bundle:
    """The SDAR pack, exported and built."""
    root = tmp_path_factory.mktemp("validate") / "sdar"
    source = str(goldens / "sdar")
    export_checkpoint(ExportOptions(source, root, tokenizer=False, candidates=4))
    build_engine(plan_build(root, TARGET, ProfileRequest(cache=32, prefill=8)))
    return Bundle.open(root)


@pytest.fixture(scope="session")
def reference(bundle: Bundle) -> TorchEngine:
    """The bundle in torch."""
    return load_reference(bundle, bundle.engine(TARGET).profiles)


def _record(engine: Engine, tokens: int) -> Recording:
    generator = Generator(engine, None)
    return record(engine, [generator.request(PROMPT, max_new_tokens=tokens, ignore_eos=True)])


@pytest.fixture(scope="session")
def recording(reference: TorchEngine) -> Recording:
    """One short generation by torch."""
    return _record(reference, 6)


@pytest.fixture(scope="session")
def states(recording: Recording) -> tuple[State, ...]:
    """Its forwards."""
    return recording.states


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[Engine]:
    """The built engine."""
    loaded = engines.load(bundle, TARGET)
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Bundle:
    """The shipped SDAR checkpoint of six layers, exported and built exactly and in int8."""
    root = tmp_path_factory.mktemp("validate") / "tiny-sdar"
    source = str(repository / "artifacts" / "tiny-sdar")
    export_checkpoint(ExportOptions(source, root, recipe="tiny/tiny-sdar"))
    for options in (BuildOptions(), BuildOptions(quantization="int8")):
        build_engine(plan_build(root, TARGET, ProfileRequest(batch=(1,)), options))
    return Bundle.open(root)


@pytest.fixture(scope="session")
def trained_recording(trained: Bundle) -> Recording:
    """What torch generates with it: enough for a prefill and two blocks."""
    engine = load_reference(trained, trained.engine(TARGET).profiles)
    return _record(engine, 12)
