"""Whole exports. Each traces, which takes seconds: tests share bundles where they can."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.numpy import load_file, save_file

from dlmc.export.bundle_writer import BundleWriter
from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError, DlmcError
from dlmc_runtime.text import TextCodec

SHAPES = {
    "prefill": (1, 12, 4, 1),
    "denoise over a cache": (2, 4, 8, 4),
    "no cache": (1, 8, 0, 8),
}


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("made") / "bundle"
    return export_checkpoint(ExportOptions(str(checkpoint.root), output, variant="logits"))


@pytest.fixture(scope="module")
def low(make_checkpoint):
    """A checkpoint in bf16, and the same values in fp32."""
    return make_checkpoint(torch.bfloat16)


@pytest.fixture(scope="module")
def low_bundle(low, traced, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("made") / "low"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dlmc.export.trace.trace", lambda *_: traced.clone())
        return export_checkpoint(ExportOptions(str(low.root), output, variant="logits"))


@pytest.fixture
def no_trace(traced, monkeypatch):
    """Use the shared trace instead of a new one."""
    monkeypatch.setattr("dlmc.export.trace.trace", lambda *_: traced.clone())


def load(bundle: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(bundle / "denoiser.onnx"))


@pytest.fixture
def unlinked(tmp_path):
    """Copy a bundle: the onnx package refuses weights that have a second name."""

    def copy(bundle: Path) -> Path:
        return Path(shutil.copytree(bundle, tmp_path / "unlinked")) / "denoiser.onnx"

    return copy


def answers(session: ort.InferenceSession, feeds) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_graph_equals_torch(bundle, checkpoint, make_feeds, run_torch, shape):
    feeds = make_feeds(checkpoint.spec.denoiser, *shape)
    theirs = run_torch(checkpoint.module, feeds)
    for (name, ours), reference in zip(answers(load(bundle), feeds).items(), theirs, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bf16_weights_count_as_the_values_they_are(low_bundle, low, make_feeds, run_torch, shape):
    feeds = make_feeds(low.spec.denoiser, *shape)
    theirs = run_torch(low.module, feeds)
    for (name, ours), reference in zip(
        answers(load(low_bundle), feeds).items(), theirs, strict=True
    ):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4, err_msg=name)


def test_bf16_weights_are_widened_exactly(low_bundle, low, unlinked):
    """Compare, bit by bit, what the graph's casts yield with the values in fp32."""
    model = onnx.load(unlinked(low_bundle))
    parameters = dict(low.module.denoiser.named_parameters())
    casts = {n.input[0]: n.output[0] for n in model.graph.node if n.input[0] in parameters}
    assert casts.keys() == parameters.keys()
    assert all(name.endswith(".Cast.0") for name in casts.values())
    inner = onnx.helper.make_graph(
        [node for node in model.graph.node if node.output[0] in casts.values()],
        "casts",
        [],
        [onnx.ValueInfoProto(name=name) for name in casts.values()],
        [one for one in model.graph.initializer if one.name in parameters],
    )
    for output in inner.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made = onnx.helper.make_model(inner, opset_imports=model.opset_import, ir_version=10)
    found = answers(ort.InferenceSession(made.SerializeToString()), {})
    for name, parameter in parameters.items():
        np.testing.assert_array_equal(found[casts[name]], parameter.detach().numpy(), name)


def test_bf16_weights_stay_bf16_on_disk(low_bundle, low):
    model = onnx.load(low_bundle / "denoiser.onnx", load_external_data=False)
    stored = {one.name: one for one in model.graph.initializer if one.external_data}
    assert len(stored) == len(list(low.module.denoiser.parameters()))
    assert {one.data_type for one in stored.values()} == {onnx.TensorProto.BFLOAT16}
    assert (low_bundle / "weights/model.safetensors").samefile(low.root / "model.safetensors")


def test_the_bundle_is_complete_and_sound(bundle, checkpoint, unlinked):
    manifest = Bundle.open(bundle).manifest
    on_disk = {p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file()}
    assert on_disk == {"manifest.json", *manifest.files}
    assert manifest.weights == ("weights/model.safetensors",)
    assert manifest.tokens.suppressed == (7,)
    assert manifest.head.variant == "logits"
    assert manifest.provenance.source == "random"
    assert manifest.provenance.versions.keys() == {"dlmc", "torch", "onnx", "onnx-ir", "onnxscript"}
    assert manifest.model.parameters == sum(p.numel() for p in checkpoint.module.parameters())
    onnx.checker.check_model(str(unlinked(bundle)), full_check=True)


def test_the_manifest_describes_the_graph(bundle):
    manifest, session = Bundle.open(bundle).manifest, load(bundle)
    types = {"tensor(int64)": "int64", "tensor(float)": "float32", "tensor(bool)": "bool"}
    for specs, values in (
        (manifest.inputs, session.get_inputs()),
        (manifest.outputs, session.get_outputs()),
    ):
        found = [(value.name, types[value.type], tuple(value.shape)) for value in values]
        assert found == [(spec.name, spec.dtype, spec.shape) for spec in specs]


def test_text_travels_along(bundle):
    manifest = Bundle.open(bundle).manifest
    assert manifest.text is not None
    codec = TextCodec.load(bundle, manifest.text)
    assert codec.encode("t42") == [42]
    assert codec.chat([{"role": "user", "content": "hi"}]) == "1"
    assert manifest.text.eos_token == "t5"  # noqa: S105


def test_only_weights_are_linked(bundle, checkpoint):
    for name in ("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "config.json"):
        assert not (bundle / name).samefile(checkpoint.root / Path(name).name)


def test_no_path_of_this_machine_is_recorded(bundle, checkpoint, repository):
    for path in (bundle / name for name in ("denoiser.onnx", "manifest.json", "config.json")):
        data = path.read_bytes()
        for secret in (repository, checkpoint.root, bundle.parent, "site-packages"):
            assert str(secret).encode() not in data


def test_weights_in_several_files(checkpoint, no_trace, make_feeds, run_torch, tmp_path):
    source, output = tmp_path / "sharded", tmp_path / "bundle"
    shutil.copytree(checkpoint.root, source)
    tensors = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    placed = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(sorted(tensors))}
    for file in sorted(set(placed.values())):
        part = {name: tensors[name] for name, where in placed.items() if where == file}
        save_file(part, source / file)
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    export_checkpoint(ExportOptions(str(source), output))
    made = Bundle.open(output).manifest.weights
    assert sorted(made) == ["weights/model-0.safetensors", "weights/model-1.safetensors"]
    feeds = make_feeds(checkpoint.spec.denoiser, 1, 4, 4, 4)
    theirs = run_torch(checkpoint.module, feeds)
    for ours, reference in zip(load(output).run(None, feeds), theirs, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4)


def test_without_weights_only_the_graph_is_there(checkpoint, no_trace, tmp_path):
    options = ExportOptions(str(checkpoint.root), tmp_path / "bundle", weights=False)
    bundle = Bundle.open(export_checkpoint(options))
    assert bundle.manifest.weights == ()
    assert not (bundle.root / "weights").exists()
    with pytest.raises(BundleError, match="has no weights"):
        bundle.require_weights()
    model = onnx.load(bundle.root / "denoiser.onnx", load_external_data=False)
    stored = [one for one in model.graph.initializer if one.external_data]
    assert {one.external_data[0].value for one in stored} == {"weights/model.safetensors"}


def test_without_tokenizer(checkpoint, no_trace, tmp_path):
    options = ExportOptions(str(checkpoint.root), tmp_path / "bundle", tokenizer=False)
    bundle = Bundle.open(export_checkpoint(options))
    assert bundle.manifest.text is None
    assert not (bundle.root / "tokenizer").exists()


def test_the_plan_is_announced_before_anything_is_written(checkpoint, no_trace, tmp_path):
    seen = []

    def announce(plan):
        assert list(tmp_path.iterdir()) == []
        seen.append(plan.spec)

    export_checkpoint(ExportOptions(str(checkpoint.root), tmp_path / "bundle"), announce)
    assert seen == [checkpoint.spec]


@pytest.mark.parametrize("step", ["write", "link", "copy", "finish"])
def test_a_full_disk_leaves_nothing(checkpoint, no_trace, tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(BundleWriter, step, full)
    with pytest.raises(DlmcError, match="No space left on device"):
        export_checkpoint(ExportOptions(str(checkpoint.root), tmp_path / "bundle"))
    assert list(tmp_path.iterdir()) == []


def test_a_failing_trace_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr("dlmc.export.trace.trace", fail)
    with pytest.raises(RuntimeError, match="no"):
        export_checkpoint(ExportOptions(str(checkpoint.root), tmp_path / "bundle"))
    assert list(tmp_path.iterdir()) == []


def test_exporting_again_gives_the_same_bundle(bundle, checkpoint, no_trace, tmp_path):
    """Down to the bytes of the graph, although one was traced apart from the other."""
    options = ExportOptions(str(checkpoint.root), tmp_path / "bundle", variant="logits")
    again = Bundle.open(export_checkpoint(options)).manifest
    assert again == Bundle.open(bundle).manifest


def test_tied_embeddings_serve_as_head(make_checkpoint, make_feeds, run_torch, tmp_path):
    source = make_checkpoint(torch.bfloat16, tie_word_embeddings=True, num_hidden_layers=1)
    output = tmp_path / "bundle"
    export_checkpoint(ExportOptions(str(source.root), output, variant="logits"))
    feeds = make_feeds(source.spec.denoiser, 1, 4, 4, 4)
    theirs = run_torch(source.module, feeds)
    for ours, reference in zip(load(output).run(None, feeds), theirs, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4)
    model = onnx.load(output / "denoiser.onnx", load_external_data=False)
    assert "lm_head.weight" not in {one.name for one in model.graph.initializer}
