import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from dlmc.validate import points


@pytest.fixture
def model(bundle):
    return ir.load(bundle.root / bundle.manifest.graph)


def _names(model):
    return [value.name for value in model.graph.outputs]


def test_points_are_modules_in_the_order_they_are_computed(model):
    found = [*points.points(model.graph)]
    assert points.way(found) == ["embed_tokens", "rope", "layers.0", "layers.1", "norm", "lm_head"]
    inside = [name for name in found if name.startswith("layers.1.")]
    assert inside == [
        "layers.1.input_layernorm",
        "layers.1.self_attn.q_proj",
        "layers.1.self_attn.k_proj",
        "layers.1.self_attn.v_proj",
        "layers.1.self_attn.q_norm",
        "layers.1.self_attn.k_norm",
        "layers.1.self_attn.Attention",
        "layers.1.self_attn.o_proj",
        "layers.1.post_attention_layernorm",
        "layers.1.mlp.gate_proj",
        "layers.1.mlp.up_proj",
        "layers.1.mlp.down_proj",
    ]
    assert found.index("layers.0") < found.index("layers.1.input_layernorm")
    assert found.index("layers.1.mlp.down_proj") < found.index("layers.1")


def test_a_layers_value_is_the_residual_stream_after_it(model):
    found = points.points(model.graph)
    assert found["layers.0"] == "layers.0.Add_1.0"
    assert found["layers.1.mlp.down_proj"] == "layers.1.mlp.down_proj.MatMul.0"


def test_only_the_residual_stream_is_cut(model):
    way = points.way(points.points(model.graph))
    assert points.cuts(way) == ["embed_tokens", "layers.0", "layers.1", "norm"]


@pytest.fixture
def run(bundle, model, tmp_path):
    """Instrument the graph and run it."""

    def run(cut, feeds):
        values = points.points(model.graph)
        points.instrument(model, values, cut)
        path = points.write(model, bundle.root, tmp_path / "graph")
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        known = {one.name for one in session.get_inputs()}
        assert known == {*feeds}
        names = [one.name for one in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


def test_an_instrumented_graph_answers_what_it_did_and_its_points(bundle, reference, states, run):
    feeds = states[0].feeds()
    found = run((), feeds)
    usual = [spec.name for spec in bundle.manifest.outputs]
    assert [*found][: len(usual)] == usual
    inner = reference.inner(feeds, ["layers.0", "norm"])
    for point, value in inner.items():
        np.testing.assert_allclose(found[points.marked_name(point)], value, atol=1e-3)


@pytest.mark.parametrize("use", [False, True])
def test_a_cut_graph_goes_on_from_what_is_given_while_it_is_told_to(reference, states, run, use):
    feeds = states[0].feeds()
    inner = reference.inner(feeds, ["layers.0", "layers.1"])
    changed = inner["layers.0"] + np.float32(1)
    found = run(
        ["layers.0"],
        {**feeds, points.given_name("layers.0"): changed, points.SWITCH: np.array(use)},
    )
    # What the layer itself answers is what it computes, whatever its readers are given.
    np.testing.assert_allclose(found["marked.layers.0"], inner["layers.0"], atol=1e-3)
    same = np.allclose(found["marked.layers.1"], inner["layers.1"], atol=1e-3)
    assert same is not use


def test_a_low_precision_point_is_answered_in_float32():
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, 2]))
    low = ir.node("Cast", [x], attributes={"to": ir.DataType.FLOAT16}, name="layers.0.Add")
    low.outputs[0].name, low.outputs[0].type = "v", ir.TensorType(ir.DataType.FLOAT16)
    low.outputs[0].shape = x.shape
    last = ir.node("Cast", [low.outputs[0]], attributes={"to": ir.DataType.FLOAT}, name="end")
    last.outputs[0].name, last.outputs[0].type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], [last.outputs[0]], nodes=[low, last], opset_imports={"": 23}, name="g")
    model = ir.Model(graph, ir_version=11)
    assert points.points(graph) == {"layers.0": "v"}
    points.instrument(model, {"layers.0": "v"}, ["layers.0"])
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    given = np.array([[3.0, 4.0]], np.float32)
    feeds = {"x": np.array([[1.5, 2.5]], np.float32), "given.layers.0": given}
    for use, wanted in ((True, given), (False, feeds["x"])):
        y, marked = session.run(None, {**feeds, points.SWITCH: np.array(use)})
        np.testing.assert_array_equal(y, wanted)
        assert marked.dtype == np.float32
        np.testing.assert_array_equal(marked, feeds["x"])


def test_the_weights_of_a_written_graph_are_links(bundle, model, tmp_path):
    path = points.write(model, bundle.root, bundle.root / "instrumented-test")
    try:
        for name in bundle.manifest.weights:
            assert (path.parent / name).samefile(bundle.root / name)
    finally:
        import shutil

        shutil.rmtree(path.parent)


def test_a_value_that_no_node_makes_has_no_producer():
    with pytest.raises(ValueError, match="no node makes x"):
        points.producer(ir.Value(name="x"))
