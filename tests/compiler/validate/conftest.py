"""One small bundle with an engine, shared by the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc.validate.recording import RecordingEngine, State
from dlmc.validate.reference import load_reference
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import Engine
from dlmc_runtime.generate import Generator


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, goldens: Path) -> Bundle:
    """The SDAR pack, exported and built."""
    root = tmp_path_factory.mktemp("validate") / "sdar"
    source = str(goldens / "sdar")
    export_checkpoint(ExportOptions(source, root, tokenizer=False, candidates=4))
    build_engine(plan_build(root, "onnxruntime-cpu", ProfileRequest(cache=32, prefill=8)))
    return Bundle.open(root)


@pytest.fixture(scope="session")
def states(bundle: Bundle) -> list[State]:
    """The forwards of one short generation by torch."""
    profiles = bundle.engine("onnxruntime-cpu").profiles
    recorder = RecordingEngine(load_reference(bundle, profiles))
    reference = Generator(recorder, None)
    reference.run([reference.request([5, 6, 7, 8, 9, 10], max_new_tokens=6, ignore_eos=True)])
    return recorder.states


@pytest.fixture
def engine(bundle: Bundle) -> Iterator[Engine]:
    """The built engine."""
    loaded = engines.load(bundle, "onnxruntime-cpu")
    yield loaded
    loaded.close()
