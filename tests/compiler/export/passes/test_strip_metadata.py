import onnx_ir as ir
import pytest

from dlmc.export.passes.strip_metadata import StripMetadata

TRACE = 'File "/elsewhere/someone/model.py", line 3'


@pytest.fixture
def model() -> ir.Model:
    return ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23, "local" : 1]>
        main (float[N] x, bool c) => (float[N] y)
        <float[1] w = {2.0}>
        {
            a = Mul(x, w)
            b = local.Twice(a)
            y = If(c) <then_branch = t () => (float[N] p) { p = Neg(b) },
                       else_branch = e () => (float[N] q) { q = Abs(b) }>
        }
        <domain: "local", opset_import: ["" : 23]>
        Twice (z) => (r) { r = Add(z, z) }
        """
    )


def parts_of(graph: ir.Graph | ir.Function):
    yield graph
    yield from graph.inputs
    for node in ir.traversal.RecursiveGraphIterator(graph):
        yield node
        yield from node.outputs
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph()


def everything(model: ir.Model):
    yield model
    yield from model.graph.initializers.values()
    yield from parts_of(model.graph)
    for function in model.functions.values():
        yield from parts_of(function)


def test_leaves_no_trace_anywhere(model):
    for part in everything(model):
        part.doc_string = TRACE
        part.metadata_props["pkg.torch.onnx.stack_trace"] = TRACE
    result = StripMetadata()(model)
    assert result.modified
    data = ir.to_proto(model).SerializeToString()
    assert b"someone" not in data
    assert b"stack_trace" not in data


def test_keeps_the_computation(model):
    before = ir.to_proto(model).SerializeToString()
    assert not StripMetadata()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_says_whether_there_was_anything(model):
    model.graph.inputs[0].metadata_props["a"] = "b"
    assert StripMetadata()(model).modified
    assert not StripMetadata()(model).modified
