"""One small bundle of each regime, exported and built, shared by the tests of this folder."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="exporting a bundle needs the compile extra")

from dlmc.export.options import ExportOptions
from dlmc.export.pipeline import export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.generate import Generator

TARGET = "onnxruntime-cpu"
TINY = {
    "tiny-llada": ProfileRequest(batch=(1,)),
    "tiny-sdar": ProfileRequest(batch=(1,), cache=96, prefill=32),
}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Path]:
    """The shipped checkpoints as bundles with an engine for ONNX Runtime."""
    folder = tmp_path_factory.mktemp("bench")
    for name, request in TINY.items():
        source, root = str(repository / "artifacts" / name), folder / name
        export_checkpoint(ExportOptions(source, root, recipe=f"tiny/{name}"))
        build_engine(plan_build(root, TARGET, request))
    return {name: folder / name for name in TINY}


@pytest.fixture(scope="session")
def cached_bundle(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Bundle:
    """The shipped LLaDA with an engine that has room for an approximate cache."""
    source = str(repository / "artifacts" / "tiny-llada")
    root = tmp_path_factory.mktemp("cached") / "bundle"
    export_checkpoint(ExportOptions(source, root, recipe="tiny/tiny-llada"))
    build_engine(plan_build(root, TARGET, ProfileRequest(batch=(1,), block=96, cache=96)))
    return Bundle.open(root)


@pytest.fixture(params=TINY)
def root(request: pytest.FixtureRequest, tiny: dict[str, Path]) -> Path:
    """Each of the two bundles."""
    path: Path = tiny[request.param]
    return path


@pytest.fixture
def bundle(root: Path) -> Bundle:
    """Each of the two, opened."""
    return Bundle.open(root)


@pytest.fixture
def generator(bundle: Bundle) -> Iterator[Generator]:
    """Its engine."""
    with Generator.of(bundle, TARGET) as loaded:
        yield loaded


@pytest.fixture
def ids() -> Callable[[int], list[int]]:
    """Token ids that say nothing, as many as asked for."""
    return lambda count: np.random.default_rng(3).integers(0, 250, count).tolist()


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Path]) -> Path:
    """The shipped SDAR with an engine in which four rows share forwards."""
    root = tmp_path_factory.mktemp("shared") / "tiny-sdar"
    shutil.copytree(tiny["tiny-sdar"], root, ignore=shutil.ignore_patterns("engines"))
    build_engine(plan_build(root, TARGET, ProfileRequest(batch=(1, 4), cache=96, prefill=32)))
    return root
