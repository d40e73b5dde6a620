import json
import os
import shutil
from dataclasses import replace

import pytest

from dlmc.folder_writer import FolderWriter
from dlmc.package.contents import KIND, Contents
from dlmc.package.options import PackageOptions
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError
from dlmc_runtime.package.record import read_package

TARGET = "onnxruntime-cpu"


@pytest.fixture
def bundle(tiny_built, tmp_path):
    """A bundle of its own; files are hard links, so write them anew instead of into them."""
    return shutil.copytree(tiny_built, tmp_path / "tiny", copy_function=os.link)


def contents(bundle, target=TARGET):
    return Contents.read(PackageOptions(bundle, "ray", bundle.parent / "out", target))


def rewrite(path, data):
    path.unlink()
    path.write_bytes(data)


def test_a_package_holds_what_is_on_record_and_nothing_else(bundle):
    (bundle / "notes.txt").write_text("private")
    other = bundle / "engines" / "openvino-cpu"
    other.mkdir()
    (other / "engine.json").write_text("{}")
    found = contents(bundle)
    with FolderWriter(bundle.parent / "out", KIND) as package:
        found.add_bundle(package, "bundle")
        found.add_record(package)
        package.publish()
    root = bundle.parent / "out"
    written = {path.relative_to(root / "bundle") for path in (root / "bundle").rglob("*.*")}
    assert {path.as_posix() for path in written if (root / "bundle" / path).is_file()} == set(
        found.files()
    )
    assert not (root / "bundle" / "notes.txt").exists()
    opened = Bundle.open(root / "bundle")
    opened.check_engine_files(opened.engine(TARGET))
    record = read_package(root)
    assert (record.format, record.name, record.target) == ("ray", "tiny", TARGET)
    assert record.manifest_sha256 == opened.manifest_sha256


def test_files_are_shared_with_the_bundle(bundle):
    with FolderWriter(bundle.parent / "out", KIND) as package:
        contents(bundle).add_bundle(package, "bundle")
        weights = "weights/model.safetensors"
        assert (package.root / "bundle" / weights).samefile(bundle / weights)


@pytest.mark.parametrize(
    "name", ["config.json", "weights/model.safetensors", f"engines/{TARGET}/denoiser.onnx"]
)
def test_a_file_that_has_changed_is_refused(bundle, name):
    path = bundle / name
    rewrite(path, bytes(path.stat().st_size))
    with pytest.raises(BundleError, match="another hash"):
        contents(bundle)


def test_a_bundle_without_weights_is_refused(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    for name in manifest["weights"]:
        del manifest["files"][name]
    manifest["weights"] = []
    rewrite(bundle / "manifest.json", json.dumps(manifest).encode())
    with pytest.raises(BundleError, match="has no weights"):
        contents(bundle)


def test_an_engine_that_was_not_built_is_refused(bundle):
    with pytest.raises(BundleError, match="dlmc build"):
        contents(bundle, "tensorrt")


def test_an_engine_needs_a_gpu_unless_it_is_one_for_cpus(bundle):
    found = contents(bundle)
    assert not found.gpu
    assert replace(found, record=found.record.model_copy(update={"device": "cuda"})).gpu
