"""Bundles of the tiny checkpoints, and states of short generations with them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.lowering.calibrate import Feeds
from dlmc.lowering.states import record_states
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.generate import Generator

PROMPTS = ("12+7=?", "sort 3 1 2 9")


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[[str], Bundle]:
    """Export a tracked checkpoint by name."""

    def make(name: str) -> Bundle:
        root = tmp_path_factory.mktemp("bundles") / name
        export_checkpoint(ExportOptions(str(repository / "artifacts" / name), root, candidates=8))
        return Bundle.open(root)

    return make


@pytest.fixture(scope="session")
def sdar(export: Callable[[str], Bundle]) -> Bundle:
    """The tiny SDAR: with a cache, and norms of queries and keys."""
    return export("tiny-sdar")


@pytest.fixture(scope="session")
def llada(export: Callable[[str], Bundle]) -> Bundle:
    """The tiny LLaDA: without a cache."""
    return export("tiny-llada")


def states_of(bundle: Bundle, shapes: ProfileRequest) -> list[Feeds]:
    build_engine(plan_build(bundle.root, "onnxruntime-cpu", shapes))
    with Generator.load(bundle.root) as generator:
        # One position a forward, so that every noise level occurs.
        sampler = replace(generator.sampler, threshold=None)
        requests = [
            generator.request(prompt, max_new_tokens=16, sampler=sampler, ignore_eos=True)
            for prompt in PROMPTS
        ]
        return record_states(generator, requests)


@pytest.fixture(scope="session")
def sdar_states(sdar: Bundle) -> list[Feeds]:
    """Forwards of two prompts at several noise levels."""
    return states_of(sdar, ProfileRequest(batch=(1,), cache=64, prefill=16))


@pytest.fixture(scope="session")
def llada_states(llada: Bundle) -> list[Feeds]:
    """The same for the tiny LLaDA."""
    return states_of(llada, ProfileRequest(batch=(1,), block=48, rows=16))
