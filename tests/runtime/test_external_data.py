import onnx
import pytest
from handmade import WEIGHTS, graph
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from dlmc_runtime.external_data import external_files


def _external(location, name="w"):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"offset": "0", "location": location, "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _model(nodes=(), initializers=(), functions=()):
    made = helper.make_graph(list(nodes), "g", [], [], list(initializers))
    return helper.make_model(made, functions=list(functions)).SerializeToString()


def test_initializers_name_their_files():
    model = _model(initializers=[_external("a.bin"), _external("b/c.bin", "v")])
    assert external_files(model) == {"a.bin", "b/c.bin"}


def test_a_graph_without_external_data_names_none():
    inline = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1])
    inline.string_data.append(b"location")
    assert external_files(_model(initializers=[inline])) == set()


def test_the_bundle_graph_names_its_weights():
    assert external_files(graph().SerializeToString()) == {WEIGHTS}


@pytest.mark.parametrize("where", ["node", "function", "subgraph", "sparse"])
def test_tensors_are_found_wherever_they_hide(where):
    constant = helper.make_node("Constant", [], ["c"], value=_external("hidden.bin"))
    if where == "node":
        model = _model(nodes=[constant])
    elif where == "function":
        ids = [helper.make_opsetid("", 23)]
        model = _model(functions=[helper.make_function("d", "F", [], ["c"], [constant], ids)])
    elif where == "subgraph":
        inner = helper.make_graph([constant], "inner", [], [])
        branch = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
        model = _model(nodes=[branch])
    else:
        sparse = onnx.SparseTensorProto(values=_external("hidden.bin"))
        made = helper.make_graph([], "g", [], [], sparse_initializer=[sparse])
        model = helper.make_model(made).SerializeToString()
    assert external_files(model) == {"hidden.bin"}


def test_the_order_of_key_and_value_does_not_matter():
    entry = b"\x12\x05x.bin\x0a\x08location"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    inner = b"\x2a" + bytes([len(tensor)]) + tensor
    assert external_files(b"\x3a" + bytes([len(inner)]) + inner) == {"x.bin"}


@pytest.mark.parametrize("data", [b"\x3a\x05ab", b"\x3b", b"\xff" * 11, b"\x3a"])
def test_broken_bytes_are_refused(data):
    with pytest.raises(ValueError, match=r"cut off|no end"):
        external_files(data)


def test_endless_nesting_is_refused():
    data = b""
    for _ in range(70):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # attribute.g, node.attribute, graph.node
            length = len(data)
            size = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14])
            data = tag + size + data
    with pytest.raises(ValueError, match="too deeply"):
        external_files(b"\x3a" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F | 0x80,
                                        len(data) >> 14]) + data)  # fmt: skip


@given(st.binary(max_size=64))
def test_any_bytes_give_names_or_one_kind_of_error(data):
    try:
        found = external_files(data)
    except ValueError:
        return
    assert all(isinstance(name, str) for name in found)
