"""What all tests share: paths, hypothesis profiles, no hub and no accidental threads."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# Times vary with the machine, so no deadline; in CI the same examples every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A test that wants the hub starts an imitation on loopback and says so.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The golden packs of the repository. Only ``tests/golden`` also runs on other folders."""
    return ROOT / "tests" / "goldens"
