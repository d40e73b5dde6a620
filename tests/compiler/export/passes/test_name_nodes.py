import onnx_ir as ir
import pytest

from dlmc.export.passes.name_nodes import NameNodes

SCOPES = "pkg.torch.onnx.name_scopes"


@pytest.fixture
def model() -> ir.Model:
    model = ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (float[N,4] x) => (float[N,4] y)
        <float[4] "net.norm.weight" = {1.0, 1.0, 1.0, 1.0}, float[1] val_7 = {2.0},
         float[1] scalar_tensor = {3.0}>
        {
            a = Mul(x, "net.norm.weight")
            b = Mul(a, val_7)
            c, d = TopK(b, scalar_tensor)
            y = Neg(c)
        }
        """.replace('"net.norm.weight"', "net_norm_weight")
    )
    model.graph.initializers["net_norm_weight"].name = "net.norm.weight"
    scopes = (
        "['', 'net', 'net.norm', 'mul']",
        "['', 'net', 'net.norm', 'mul_1']",
        "['', 'head', 'topk']",
        "['neg']",
    )
    for node, scope in zip(model.graph, scopes, strict=True):
        node.metadata_props[SCOPES] = scope
    return model


def test_nodes_are_named_after_module_and_operator(model):
    assert NameNodes("net.")(model).modified
    assert [node.name for node in model.graph] == ["norm.Mul", "norm.Mul_1", "head.TopK", "Neg"]


def test_values_are_named_after_their_node(model):
    NameNodes("net.")(model)
    values = [value.name for node in model.graph for value in node.outputs]
    assert values == ["norm.Mul.0", "norm.Mul_1.0", "head.TopK.0", "head.TopK.1", "y"]


def test_parameters_lose_the_prefix_and_constants_are_numbered(model):
    NameNodes("net.")(model)
    assert sorted(model.graph.initializers) == ["constant_0", "constant_1", "norm.weight"]
    assert model.graph[0].inputs[1].name == "norm.weight"


def test_without_a_prefix_names_stay_whole(model):
    NameNodes()(model)
    assert model.graph[0].name == "net.norm.Mul"
    assert "net.norm.weight" in model.graph.initializers


def test_inputs_and_outputs_keep_their_names(model):
    NameNodes("net.")(model)
    assert [model.graph.inputs[0].name, model.graph.outputs[0].name] == ["x", "y"]


def test_nodes_without_a_module_belong_to_the_root(model):
    del model.graph[0].metadata_props[SCOPES]
    model.graph[1].metadata_props[SCOPES] = "['_internal_hook_of_the_exporter', 'mul']"
    NameNodes("net.")(model)
    assert [node.name for node in model.graph][:2] == ["Mul", "Mul_1"]


def test_a_second_run_changes_nothing(model):
    NameNodes("net.")(model)
    assert not NameNodes("net.")(model).modified


def test_two_values_of_one_name_are_noticed(model):
    model.graph.inputs[0].name = "norm.Mul.0"
    with pytest.raises(ir.passes.PostconditionError, match=r"norm\.Mul\.0 is used twice"):
        NameNodes("net.")(model)
