"""What all tests share: paths, hypothesis profiles, no hub and no accidental threads."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import traces
from hypothesis import settings

ROOT = Path(__file__).parent.parent

# Times vary with the machine, so no deadline; in CI the same examples every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A test that wants the hub starts an imitation on loopback and says so.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest file, so that no process is left alone with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_readme.py")


@pytest.fixture(scope="session", autouse=True)
def _traced_once() -> Iterator[None]:
    with traces.traced_once():
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The golden packs of the repository. Only ``tests/golden`` also runs on other folders."""
    return ROOT / "tests" / "goldens"


@pytest.fixture(scope="session")
def _tiny_originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    from dlmc.export.pipeline import ExportOptions, export_checkpoint

    folder = tmp_path_factory.mktemp("tiny")

    def get(name: str) -> Path:
        if not (folder / name).exists():
            source, recipe = str(ROOT / "artifacts" / name), f"tiny/{name}"
            export_checkpoint(ExportOptions(source=source, output=folder / name, recipe=recipe))
        return folder / name

    return get


@pytest.fixture
def tiny_bundle(_tiny_originals: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Return a bundle of a shipped checkpoint without engines: ``tiny_bundle("tiny-sdar")``.

    Each test has its own folder; files are hard links, so write them anew instead of into them.
    """

    def get(name: str) -> Path:
        return shutil.copytree(_tiny_originals(name), tmp_path / name, copy_function=os.link)

    return get


@pytest.fixture(scope="session")
def tiny_built(
    _tiny_originals: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A bundle of tiny-sdar with an engine for onnxruntime-cpu. Many share it: do not write."""
    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.profiles import ProfileRequest

    root = tmp_path_factory.mktemp("built") / "tiny-sdar"
    shutil.copytree(_tiny_originals("tiny-sdar"), root, copy_function=os.link)
    build_engine(plan_build(root, "onnxruntime-cpu", ProfileRequest()))
    return root
