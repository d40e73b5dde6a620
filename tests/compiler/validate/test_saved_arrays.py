import base64
import io
import json
import zipfile

import numpy as np
import pytest

from dlmc.validate import saved_arrays
from dlmc.validate.saved_arrays import read_inputs, read_outputs
from dlmc_runtime.errors import UsageError

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def _encoded(data):
    return {"array": base64.b64encode(data).decode(), "polygraphy_class": "ndarray"}


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


@pytest.fixture
def inputs(tmp_path):
    """Write an inputs file that holds something under the name x."""

    def write(value):
        path = tmp_path / "inputs.json"
        path.write_text(value if isinstance(value, str) else json.dumps([{"x": value}]))
        return path

    return write


def test_what_polygraphy_writes_is_read(tmp_path):
    from polygraphy.comparator import RunResults
    from polygraphy.json import save_json

    arrays = {"a": ARRAY, "b": np.array([[True]]), "c": np.array(7), "d": np.zeros((2, 0), "f2")}
    save_json([arrays], str(tmp_path / "inputs.json"))
    results = RunResults()
    results.add([arrays, arrays], runtime=0.0, runner_name="torch")
    results.save(str(tmp_path / "outputs.json"))
    (found,) = read_inputs(tmp_path / "inputs.json")
    name, outputs = read_outputs(tmp_path / "outputs.json")
    assert name == "torch"
    assert len(outputs) == 2
    for one in (found, *outputs):
        assert one.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(one[key], array)
            assert one[key].dtype == array.dtype


def test_a_runner_s_name_is_fit_for_a_report(tmp_path):
    from polygraphy.comparator import RunResults

    results = RunResults()
    results.add([{"a": ARRAY}], runtime=0.0, runner_name="NAME")
    path = tmp_path / "outputs.json"
    results.save(str(path))
    path.write_text(path.read_text().replace("NAME", "\\ud800" + "x" * 999))
    name, _ = read_outputs(path)
    assert name.encode("utf-8").startswith(b"?x")
    assert len(name) == 100


def test_a_pickle_is_refused(inputs):
    data = _npy(np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="no plain numbers"):
        read_inputs(inputs(_encoded(data)))


def test_a_torch_tensor_is_refused(inputs):
    import torch
    from polygraphy.json import to_json

    with pytest.raises(UsageError, match="no array under 'x'"):
        read_inputs(inputs(json.loads(to_json(torch.zeros(2)))))


def test_an_archive_is_refused_however_small_it_says_it_is(inputs):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\0" * (1 << 20))
    with pytest.raises(UsageError, match=r"no \.npy file"):
        read_inputs(inputs(_encoded(buffer.getvalue())))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 40,), }", "damaged array"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }", "another size"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "odd shape"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }", "odd shape"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "no plain numbers"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "no plain"),
        ("{'descr': '<f4', 'shape': (1,), }", "odd header"),
        ("__import__('os').system('true')", "damaged array"),
        ("{", "damaged array"),
    ],
)
def test_a_header_that_lies_is_refused_before_memory_is_taken(inputs, header, message):
    text = header.encode().ljust(118) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0\0\0\0"
    with pytest.raises(UsageError, match=message):
        read_inputs(inputs(_encoded(data)))


@pytest.mark.parametrize("text", ["", "[", "nonsense", "[" * 100_000, '{"a": 1}', "[[]]", "[1]"])
def test_what_is_no_list_of_inputs_is_refused(inputs, text):
    with pytest.raises(UsageError, match=r"inputs\.json"):
        read_inputs(inputs(text))


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"array": "AAAA"}, _encoded(b"")])
def test_what_is_no_array_is_refused(inputs, value):
    with pytest.raises(UsageError, match=r"inputs\.json"):
        read_inputs(inputs(value))


def test_bad_base64_is_refused(inputs):
    with pytest.raises(UsageError, match="damaged array"):
        read_inputs(inputs({"array": "***", "polygraphy_class": "ndarray"}))


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"lst": []},
        {"polygraphy_class": "RunResults"},
        {"polygraphy_class": "RunResults", "lst": []},
        {"polygraphy_class": "RunResults", "lst": [["a", []], ["b", []]]},
        {"polygraphy_class": "RunResults", "lst": [["a"]]},
        {"polygraphy_class": "RunResults", "lst": [[1, []]]},
        {"polygraphy_class": "RunResults", "lst": [["a", [3]]]},
        {"polygraphy_class": "RunResults", "lst": [["a", [{"outputs": {}}]]]},
    ],
)
def test_what_is_no_result_of_one_runner_is_refused(tmp_path, data):
    path = tmp_path / "outputs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"outputs\.json"):
        read_outputs(path)


def test_a_file_that_is_too_large_is_refused(inputs, monkeypatch):
    monkeypatch.setattr(saved_arrays, "MAX_BYTES", 10)
    with pytest.raises(UsageError, match="larger than 10 bytes"):
        read_inputs(inputs(_encoded(_npy(ARRAY))))


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_inputs(tmp_path / "nothing.json")
