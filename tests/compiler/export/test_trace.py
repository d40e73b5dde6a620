from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from dlmc.denoiser.head import Head
from dlmc.export.graph_io import graph_inputs, graph_outputs
from dlmc.export.trace import OPSET, constants, trace

MASK = 7
SHAPES = {
    "denoise over a cache": (1, 4, 8, 4),
    "prefill": (1, 12, 3, 1),
    "no cache": (1, 6, 0, 6),
    "batch": (3, 4, 5, 2),
    "batch without cache": (2, 5, 0, 3),
    "one position": (1, 1, 0, 1),
    "one position over a cache": (2, 1, 7, 1),
    "more rows than positions": (1, 2, 3, 5),
}


@pytest.fixture(scope="module")
def session(traced, checkpoint) -> ort.InferenceSession:
    """The trace with the values of the random checkpoint."""
    model = traced.clone()
    for name, parameter in checkpoint.module.denoiser.named_parameters():
        model.graph.initializers[name].const_value = ir.tensor(parameter.detach().numpy())
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return ort.InferenceSession(serialize(model))


def serialize(model: ir.Model) -> bytes:
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data


def answers(session: ort.InferenceSession, feeds) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def described(values) -> list[tuple[str, str, tuple[object, ...]]]:
    types = {"INT64": "int64", "BOOL": "bool", "FLOAT": "float32"}
    sizes = [[d if isinstance(d, int) else d.value for d in value.shape] for value in values]
    return [(v.name, types[v.dtype.name], tuple(s)) for v, s in zip(values, sizes, strict=True)]


def test_inputs_and_outputs_are_the_contract(traced, config):
    specs = [(s.name, s.dtype, s.shape) for s in graph_inputs(config)]
    assert described(traced.graph.inputs) == specs
    specs = [(s.name, s.dtype, s.shape) for s in graph_outputs(config, 32, "logits")]
    assert described(traced.graph.outputs) == specs


def test_is_one_plain_graph_of_one_opset(traced):
    assert dict(traced.opset_imports) == {"": OPSET}
    assert not traced.functions
    used = Counter(node.op_type for node in traced.graph)
    assert not used.keys() & {"If", "Loop", "Scan", "SplitToSequence", "SequenceAt", "NonZero"}
    assert {node.domain for node in traced.graph} == {""}


def test_attention_is_one_operator_with_an_explicit_mask(traced):
    found = [node for node in traced.graph if node.op_type == "Attention"]
    assert len(found) == 3
    for node in found:
        assert len(node.outputs) == 1
        assert node.inputs[3] is traced.graph.inputs[2]
        assert node.attributes.get_int("is_causal", 0) == 0


def test_holds_nothing_of_this_machine(traced, repository):
    data = serialize(traced)
    for secret in (str(repository), "site-packages", ".py", "torch", "/home", "/root"):
        assert secret.encode() not in data


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_torch(session, checkpoint, config, make_feeds, run_torch, shape):
    feeds = make_feeds(config, *shape)
    theirs = run_torch(checkpoint.module, feeds)
    for (name, ours), reference in zip(answers(session, feeds).items(), theirs, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.fixture(scope="module")
def small(config):
    return replace(config, num_hidden_layers=1)


@pytest.fixture(scope="module")
def guided(small) -> ort.InferenceSession:
    """A guided head on one layer of random weights, over a second mask and an adapter switch."""
    shape = replace(small, sliding_window=3, adapter_rank=2)
    return random_session(trace(shape, Head(300, 4, [MASK], "guided")))


def random_session(model: ir.Model) -> ort.InferenceSession:
    """Run a trace with weights drawn by their names, the same in every graph that has them."""
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            assert value.shape is not None
            rng = np.random.default_rng(list(name.encode()))
            array = rng.standard_normal(value.shape.numpy(), dtype=np.float32)
            value.const_value = ir.tensor(array / 10, name=name)
    return ort.InferenceSession(serialize(model))


def test_inputs_that_not_every_graph_has_are_where_the_contract_says(guided, small):
    shape = replace(small, sliding_window=3, adapter_rank=2)
    names = [spec.name for spec in graph_inputs(shape, "guided")]
    assert [value.name for value in guided.get_inputs()] == names


def test_guided_logits_are_combined_before_everything_else(guided, small, make_feeds):
    logits = random_session(trace(small, Head(300, 4, [MASK], "logits")))
    feeds = make_feeds(small, 3, 5, 4, 5)
    feeds["temperature"][:] = 0
    mask = {"sliding_attention_mask": feeds["attention_mask"], "adapter": np.zeros(3, np.float32)}
    guidance = {
        "guidance": np.array([1.5, 2.0, 9.0], np.float32),
        "partner": np.array([1, 1, 0]),
    }
    found, raw = answers(guided, {**feeds, **mask, **guidance}), answers(logits, feeds)
    combined = raw["logits"].copy()
    for row, other in ((0, 1), (2, 0)):
        u, scale = raw["logits"][other], 1 + guidance["guidance"][row]
        combined[row] = u + scale * (raw["logits"][row] - u)
    combined[..., MASK] = -np.inf
    best = combined.max(-1)
    np.testing.assert_allclose(found["sampled_logit"], best, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found["sampled_id"], combined.argmax(-1))
    total = best + np.log(np.exp(combined - best[..., None]).sum(-1))
    np.testing.assert_allclose(found["logsumexp"], total, rtol=1e-4, atol=1e-4)
    for name in ("top_logits", "logsumexp", "entropy", "tempered_entropy"):
        np.testing.assert_array_equal(found[name][1], raw[name][1], err_msg=name)


def test_padding_a_block_changes_nothing(session, config, make_feeds):
    feeds = make_feeds(config, 1, 6, 4, 4)
    feeds["attention_mask"][..., 8:] = False
    feeds["attention_mask"][..., 0] = True
    feeds["head_rows"][:] = range(4)
    short = dict(feeds, attention_mask=feeds["attention_mask"][:, :, :4, :8])
    short |= {name: feeds[name][:, :4] for name in ("input_ids", "position_ids")}
    padded, alone = answers(session, feeds), answers(session, short)
    np.testing.assert_array_equal(padded["sampled_id"], alone["sampled_id"])
    np.testing.assert_allclose(padded["logits"], alone["logits"], rtol=1e-5, atol=1e-5)


def test_equal_logits_go_to_the_lower_id(one_layer, config, make_feeds):
    model = one_layer.clone()
    for value in model.graph.initializers.values():
        if value.const_value is None:
            value.const_value = ir.tensor(np.zeros(value.shape.numpy(), np.float32))
    feeds = make_feeds(replace(config, num_hidden_layers=1), 1, 3, 0, 3)
    feeds["temperature"][:] = 0
    found = answers(ort.InferenceSession(serialize(model)), feeds)
    np.testing.assert_array_equal(found["top_ids"], [[[0, 1, 2, 3]] * 3])
    np.testing.assert_array_equal(found["sampled_id"], [[0] * 3])
    np.testing.assert_allclose(found["entropy"], np.log(298), rtol=1e-5)


def test_names_say_where_they_are(traced):
    names = {node.name for node in traced.graph}
    for layer in range(3):
        assert f"layers.{layer}.self_attn.Attention" in names
        assert f"layers.{layer}.mlp.down_proj.MatMul" in names
    assert {"embed_tokens.Gather", "norm.RMSNormalization", "head.TopK"} <= names
    assert not [name for name in names if "node_" in name or "val_" in name]


def test_parameters_have_their_names_and_no_values(traced, checkpoint):
    initializers = traced.graph.initializers
    empty = {name for name, value in initializers.items() if value.const_value is None}
    assert empty == dict(checkpoint.module.denoiser.named_parameters()).keys()
    assert len(serialize(traced)) < 100_000


def test_a_repeated_layer_is_like_a_traced_one(traced):
    def layer(index: int) -> list[tuple[str, list[str]]]:
        prefix = f"layers.{index}."
        nodes = [node for node in traced.graph if node.name.startswith(prefix)]
        return [(node.name.removeprefix(prefix), list(node.attributes)) for node in nodes]

    assert layer(2) == layer(1)


def test_constants_come_from_the_modules_that_state_them(checkpoint):
    found = constants(checkpoint.module)
    assert found.keys() == {"denoiser.rope.inv_freq", "head.suppressed"}
    assert found["head.suppressed"].nonzero().tolist() == [[7]]


def test_leaves_device_and_gradients_as_they_were(traced):
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()
