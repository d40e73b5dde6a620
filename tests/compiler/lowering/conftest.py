"""Bundles of the tiny checkpoints, shared by the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc_runtime.bundle import Bundle


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[[str], Bundle]:
    """Export a tracked checkpoint by name."""

    def make(name: str) -> Bundle:
        root = tmp_path_factory.mktemp("bundles") / name
        source = str(repository / "artifacts" / name)
        export_checkpoint(ExportOptions(source, root, tokenizer=False, candidates=8))
        return Bundle.open(root)

    return make


@pytest.fixture(scope="session")
def sdar(export: Callable[[str], Bundle]) -> Bundle:
    """The tiny SDAR: with a cache, norms of queries and keys, and float32 weights."""
    return export("tiny-sdar")


@pytest.fixture(scope="session")
def llada(export: Callable[[str], Bundle]) -> Bundle:
    """The tiny LLaDA: without a cache."""
    return export("tiny-llada")
