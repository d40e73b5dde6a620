import onnx_ir as ir
import pytest

from dlmc.export.passes.check_graph import CheckGraph
from dlmc_runtime.manifest import TensorSpec

INPUTS = tuple(TensorSpec(name=name, dtype="float32", shape=("n",)) for name in ("x", "w"))
OUTPUTS = (TensorSpec(name="y", dtype="float32", shape=("n",)),)
HEAD = '<ir_version: 10, opset_import: ["" : 23{}]> main (float[n] x, float[n] w) => (float[n] y)'


def parse(body: str, opsets: str = "", functions: str = "") -> ir.Model:
    return ir.from_onnx_text(f"{HEAD.format(opsets)}\n{body}\n{functions}")


def check(model: ir.Model) -> ir.passes.PassResult:
    return CheckGraph(INPUTS, OUTPUTS)(model)


def test_accepts_a_plain_graph_and_leaves_it_alone():
    model = parse("<float[1] c = {1.0}> { z = Add(x, c)  y = Mul(z, w) }")
    before = ir.to_proto(model).SerializeToString()
    assert not check(model).modified
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (parse("{ y = other.Add(x, w) }", ', "other" : 1'), r"operator sets \['other'\]"),
        (parse("{ z, u = Attention(x, x, w)  y = Neg(z) }"), "attention with 2 outputs"),
        (parse("{ s = SplitToSequence(x)  y = SequenceAt(s, w) }"), "::SplitToSequence"),
        (parse("{ z = NonZero(x)  y = Neg(w) }"), "::NonZero"),
        (parse("<float[1] c = {1.0}> { y = Add(x, w) }"), "does not use c"),
        (
            parse(
                "{ y = local.F(x) }",
                ', "local" : 1',
                '<domain: "local", opset_import: ["" : 23]> F (a) => (b) { b = Neg(a) }',
            ),
            "has functions",
        ),
        (
            parse(
                "{ c = IsNaN(x) y = If(c) <then_branch = t () => (float[n] p) { p = Neg(x) },"
                " else_branch = e () => (float[n] q) { q = Abs(x) }> }"
            ),
            "::If",
        ),
    ],
)
def test_refuses_what_a_target_could_not_read(model, words):
    with pytest.raises(ir.passes.PassError, match=f"the graph .*{words}"):
        check(model)


def test_accepts_the_operator_sets_it_is_given():
    model = parse("{ y = other.Add(x, w) }", ', "other" : 1')
    assert not CheckGraph(INPUTS, OUTPUTS, {"other"})(model).modified


def test_refuses_other_names_or_another_order():
    model = parse("{ y = Add(x, w) }")
    with pytest.raises(ir.passes.PassError, match="has the inputs and outputs"):
        CheckGraph(INPUTS[::-1], OUTPUTS)(model)
    with pytest.raises(ir.passes.PassError, match="has the inputs and outputs"):
        CheckGraph(INPUTS, ())(model)
