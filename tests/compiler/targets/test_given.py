import numpy as np
import onnx_ir as ir
import pytest
from sealing import replace_bytes

from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.given import take
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import DlmcError, UsageError
from dlmc_runtime.generate import Generator


@pytest.fixture
def bundle(tiny_bundle):
    return Bundle.open(tiny_bundle("tiny-sdar"))


@pytest.fixture
def elsewhere(bundle, tmp_path):
    """Write the bundle's graph as another tool would, changed; return where."""

    def write(change=lambda graph: None):
        for name in bundle.manifest.weights:  # the library refuses files with several names
            replace_bytes(bundle.root / name, (bundle.root / name).read_bytes())
        model = ir.load(bundle.root / "denoiser.onnx")
        change(model.graph)
        (tmp_path / "other").mkdir(exist_ok=True)
        path = tmp_path / "other" / "quantized.onnx"
        for value in model.graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                values = value.const_value.numpy()
                value.const_value = ir.Tensor(values.copy(), name=value.name)
        ir.save(model, path, external_data="quantized.bin")
        return path

    return write


def taken(bundle, path, folder):
    return take(path, bundle.manifest, folder)


def test_graph_and_weights_are_copied(bundle, elsewhere, tmp_path):
    assert taken(bundle, elsewhere(), tmp_path / "engine") == "float32"
    ours, theirs = (
        ir.load(root / "denoiser.onnx").graph for root in (tmp_path / "engine", bundle.root)
    )
    assert ours.initializers.keys() == theirs.initializers.keys()
    for name, value in ours.initializers.items():
        other = theirs.initializers[name].const_value
        assert value.const_value is not None
        assert other is not None
        np.testing.assert_array_equal(value.const_value.numpy(), other.numpy())
    assert list((tmp_path / "engine" / "weights").iterdir())


def test_an_engine_of_a_given_graph_answers_as_it_says(bundle, elsewhere):
    def silence(graph):
        node = next(n for n in graph if n.op_type == "MatMul" and "o_proj" in str(n.name))
        zeros = ir.node("Sub", [node.outputs[0], node.outputs[0]], name="silence")
        zeros.outputs[0].type, zeros.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        graph.insert_after(node, zeros)
        for user, index in list(node.outputs[0].uses()):
            if user is not zeros:
                user.replace_input_with(index, zeros.outputs[0])

    root, request = bundle.root, ProfileRequest(batch=(1,))
    answers = []
    for make in (elsewhere, lambda: None, lambda: elsewhere(silence)):
        path = make()
        plan = plan_build(root, "onnxruntime-cpu", request, BuildOptions(graph=path))
        assert plan.name == ("onnxruntime-cpu" if path is None else "onnxruntime-cpu-graph")
        record = build_engine(plan)
        assert record.plan == f"engines/{plan.name}/denoiser.onnx"
        with Generator.load(root, plan.name) as generator:
            assert generator.text is not None
            chat = generator.text.chat([{"role": "user", "content": "458+386=?"}])
            answers.append(generator.generate(chat, max_new_tokens=24, ignore_eos=True).tokens)
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda graph: graph.outputs.pop(), r"disagree about present\.5\.value"),
        (lambda graph: setattr(graph.inputs[0], "name", "ids"), "disagree about"),
        (
            lambda graph: setattr(graph.inputs[3], "type", ir.TensorType(ir.DataType.FLOAT16)),
            "caches of the types",
        ),
        (
            lambda graph: setattr(graph.inputs[-1], "type", ir.TensorType(ir.DataType.FLOAT16)),
            "disagree about uniform",
        ),
    ],
)
def test_another_signature_is_refused(bundle, elsewhere, tmp_path, change, problem):
    with pytest.raises(UsageError, match=problem):
        taken(bundle, elsewhere(change), tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 40, b"no graph at all"])
def test_what_is_no_graph_is_one_sentence(bundle, tmp_path, content):
    path = tmp_path / "broken.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.onnx") as caught:
        taken(bundle, path, tmp_path / "engine")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_sentence(bundle, elsewhere, tmp_path, monkeypatch):
    path = elsewhere()

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(DlmcError, match="No space left on device"):
        taken(bundle, path, tmp_path / "engine")
