import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sealing import replace_bytes

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.validate import reference
from dlmc.validate.reference import (
    Reshaped,
    answering,
    graph_record,
    is_graph,
    load_graph,
    load_reference,
    open_reference,
)
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.onnxruntime import OnnxRuntimeEngine
from dlmc_runtime.errors import BundleError, UsageError
from dlmc_runtime.manifest import Profile

OTHER = (Profile(batch=1, block=4, cache=7, rows=4),)


def test_every_weight_of_the_bundle_is_loaded(bundle, reference, goldens):
    checkpoint = load_file(goldens / "sdar" / "model.safetensors")
    loaded = reference.module.denoiser.state_dict()
    assert len(loaded) == len(checkpoint)
    for name, value in loaded.items():
        theirs = name if name.startswith("lm_head") else f"model.{name}"
        assert torch.equal(value, checkpoint[theirs].float()), name


def test_an_adapter_of_the_bundle_is_loaded(goldens, tmp_path):
    pack, folder = goldens / "nemotron_labs_diffusion", "linear_spec_lora"
    options = ExportOptions(str(pack), tmp_path / "bundle", adapter=folder, tokenizer=False)
    export_checkpoint(options)
    loaded = load_reference(Bundle.open(options.output), OTHER).module.denoiser
    assert loaded.config.adapter_scale == 4.0
    stored = load_file(pack / folder / "adapter_model.safetensors")
    for name, value in loaded.state_dict().items():
        if "o_adapter" in name:
            theirs = name.replace("o_adapter.a", "o_proj.lora_A").replace(
                "o_adapter.b", "o_proj.lora_B"
            )
            assert torch.equal(value, stored.pop(f"base_model.model.encoder.{theirs}"))
    assert not stored


def test_the_reference_suppresses_what_the_manifest_says(bundle, reference):
    assert reference.module.head.suppressed_ids == bundle.manifest.tokens.suppressed


@pytest.mark.parametrize("load", [load_reference, load_graph])
def test_weights_are_hashed_before_they_are_parsed(bundle, tmp_path, load):
    import shutil

    root = tmp_path / "damaged"
    shutil.copytree(bundle.root, root)
    weights = root / bundle.manifest.weights[0]
    replace_bytes(weights, weights.read_bytes()[:-1] + b"\x7f")
    opened = Bundle.open(root, weights=False)
    with pytest.raises(BundleError, match="another hash"):
        load(opened, bundle.manifest.profiles)


def test_weights_that_were_hashed_are_not_hashed_again(bundle, monkeypatch):
    def never(*arguments):
        raise AssertionError("hashed twice")

    monkeypatch.setattr(reference, "check_files", never)
    assert bundle.weights_checked
    load_graph(bundle, bundle.manifest.profiles).close()


def test_references_by_name(bundle, engine):
    profiles = bundle.engine("onnxruntime-cpu").profiles
    graph = open_reference(bundle, "graph", profiles)
    assert isinstance(graph, OnnxRuntimeEngine)
    built = open_reference(bundle, "onnxruntime-cpu", ())
    assert built.profiles == profiles
    with pytest.raises(UsageError, match="no target is called 'paper'"):
        open_reference(bundle, "paper", profiles)


def test_torch_and_graph_take_the_profiles_of_the_engine(engine):
    for name in ("torch", "graph"):
        assert Reshaped(engine, name, OTHER).profiles == OTHER


def test_an_engine_takes_only_the_profiles_it_shares(engine):
    own = engine.profiles
    shared = Reshaped(engine, "onnxruntime-cpu", (*OTHER, own[0]))
    assert shared.profiles == (own[0],)
    with pytest.raises(UsageError, match="built for other shapes"):
        Reshaped(engine, "onnxruntime-cpu", OTHER)


def test_only_an_engine_of_the_bundles_graph_is_the_graph(bundle):
    record = graph_record(bundle, bundle.manifest.profiles)
    assert is_graph(bundle, record)
    assert is_graph(bundle, record.model_copy(update={"plan": "engines/x/denoiser.onnx"}))
    assert not is_graph(bundle, record.model_copy(update={"quantization": "int8"}))
    assert not is_graph(bundle, record.model_copy(update={"target": "openvino-cpu"}))


def test_torch_and_graph_answer_all_outputs_alike(bundle, reference, states):
    graph = load_graph(bundle, bundle.manifest.profiles)
    with (
        answering(bundle, "torch", reference) as ours,
        answering(bundle, "graph", graph) as theirs,
    ):
        one, other = ours(states[0].feeds()), theirs(states[0].feeds())
    assert [*one] == [*other] == [spec.name for spec in bundle.manifest.outputs]
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], atol=1e-3)


def test_an_engine_does_not_answer_all_outputs(bundle, engine):
    with (
        pytest.raises(UsageError, match="cannot be saved against onnxruntime-cpu"),
        answering(bundle, "onnxruntime-cpu", engine),
    ):
        pass
