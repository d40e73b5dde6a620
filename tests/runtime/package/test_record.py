import json

import pytest
from hypothesis import given, strategies

from dlmc_runtime.errors import BundleError
from dlmc_runtime.package.record import PACKAGE, PackageRecord, read_package

GOOD = {
    "schema_version": 2,
    "format": "ray",
    "name": "tiny",
    "target": "onnxruntime-cpu",
    "manifest_sha256": "0" * 64,
    "version": "1.0",
}


def test_what_was_written_is_read(tmp_path):
    record = PackageRecord.model_validate(GOOD)
    (tmp_path / PACKAGE).write_text(record.model_dump_json())
    assert read_package(tmp_path) == record


def test_no_package_is_one_sentence(tmp_path):
    with pytest.raises(BundleError, match=r"package\.json cannot be read.*dlmc package"):
        read_package(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../up"},
        {"name": ""},
        {"name": "a/b"},
        {"name": 'a"b'},
        {"name": "a\n"},
        {"name": "x" * 65},
        {"format": "torch"},
        {"schema_version": 1},
        {"more": 1},
        {"manifest_sha256": "0"},
    ],
)
def test_anything_else_is_refused(tmp_path, change):
    (tmp_path / PACKAGE).write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(BundleError, match=r"package\.json"):
        read_package(tmp_path)


@given(strategies.binary(max_size=200))
def test_no_bytes_raise_anything_else(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("any")
    (root / PACKAGE).write_bytes(data)
    with pytest.raises(BundleError):
        read_package(root)
