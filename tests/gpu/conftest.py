"""Tests that need a GPU: all of this folder but those of the program that runs them."""

import pytest

from dlmc_runtime.engines import cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked where no GPU answers."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and cuda.compute_capability() is None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU answers: make gpu-check runs these"))
