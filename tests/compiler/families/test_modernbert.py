"""ModernBERT against a computation of its own, written from the definition in transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.families import FamilySpec, Overrides, detect
from dlmc.families.modernbert import MODERNBERT
from dlmc.synth import Blueprint, Scale, write_checkpoint
from dlmc.validate.reference import load_reference
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.onnxruntime import open_session
from dlmc_runtime.errors import CheckpointError
from dlmc_runtime.manifest import Profile

RELEASED: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "decoder_bias": True,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-5,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "vocab_size": 50368,
}
MASK = Overrides(mask_id=50284)


def read(**changes: Any) -> FamilySpec:
    return MODERNBERT.read({**RELEASED, **changes}, {}, MASK)


def test_released_shape():
    assert detect(RELEASED) is MODERNBERT
    spec = read()
    assert (spec.regime, spec.shift, spec.block_length) == ("full", 0, 32)
    assert (spec.sliding_window, spec.last_block) == (64, "cut")
    assert (spec.mask_id, spec.stop_ids, spec.pad_id) == (50284, (50282,), 50283)
    denoiser = spec.denoiser
    assert (denoiser.head_dim, denoiser.num_key_value_heads) == (64, 12)
    assert denoiser.kinds[:5] == ("global", "local", "local", "global", "local")


def test_rope_of_transformers_5():
    nested = {
        "full_attention": {"rope_theta": 1e5, "rope_type": "default"},
        "sliding_attention": {"rope_type": "default"},
    }
    denoiser = read(rope_parameters=nested).denoiser
    assert denoiser.encoder is not None
    assert (denoiser.rope_theta, denoiser.encoder.local_rope_theta) == (1e5, 1e4)


def test_one_rope_for_all_layers():
    denoiser = read(local_rope_theta=None).denoiser
    assert denoiser.encoder is not None
    assert denoiser.encoder.local_rope_theta == denoiser.rope_theta == 160000.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"norm_bias": True}, "'norm_bias' is true"),
        ({"hidden_activation": "silu"}, "'hidden_activation' is \"silu\""),
        ({"tie_word_embeddings": False}, "'tie_word_embeddings' is false"),
        ({"local_attention": 1}, "'local_attention' is 1"),
        ({"layer_types": ["full_attention"] * 22}, "'layer_types' is not one full_attention in 3"),
        ({"rope_parameters": {}}, "'rope_parameters' has no object 'full_attention'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "full_attention: 'rope_type' is \"yarn\"",
        ),
        ({"num_attention_heads": 5}, "'hidden_size' 768 is not a multiple"),
        ({"norm_eps": None}, "'norm_eps' is missing"),
    ],
)
def test_what_does_not_fit(changes: dict[str, Any], sentence: str):
    with pytest.raises(CheckpointError, match=sentence):
        read(**changes)


def test_weights_of_the_first_layer():
    names = MODERNBERT.weight_names(read())
    assert "layers.0.input_layernorm.weight" not in names
    assert names["layers.1.input_layernorm.weight"] == "model.layers.1.attn_norm.weight"
    assert names["lm_head_bias"] == "decoder.bias"
    assert "lm_head_bias" not in MODERNBERT.weight_names(read(decoder_bias=False))
    assert MODERNBERT.duplicates(read()) == {"decoder.weight"}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turn(x: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
    rotated = torch.view_as_complex(torch.stack((x[..., :half], x[..., half:]), -1))
    rotated = rotated * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((rotated.real, rotated.imag), -1)


def reference(folder: Path, ids: torch.Tensor) -> np.ndarray:
    """Compute logits [T,V] of one sequence in float64, layer by layer."""
    config = json.loads((folder / "config.json").read_text())
    w = {k: v.double() for k, v in load_file(folder / "model.safetensors").items()}
    heads, window = config["num_attention_heads"], config["local_attention"] // 2
    position = torch.arange(len(ids))
    near = (position[:, None] - position[None]).abs() <= window
    x = norm(w["model.embeddings.tok_embeddings.weight"][ids], w["model.embeddings.norm.weight"])
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        local = i % config["global_attn_every_n_layers"] != 0
        theta = config["local_rope_theta" if local else "global_rope_theta"]
        normed = norm(x, w[at + "attn_norm.weight"]) if i else x
        mixed = (normed @ w[at + "attn.Wqkv.weight"].T).view(len(ids), 3, heads, -1)
        query, key, value = (mixed[:, part].transpose(0, 1) for part in range(3))
        scores = turn(query, theta) @ turn(key, theta).transpose(1, 2) / query.shape[-1] ** 0.5
        if local:
            scores = scores.masked_fill(~near, -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        x = x + attended @ w[at + "attn.Wo.weight"].T
        inner, gate = (norm(x, w[at + "mlp_norm.weight"]) @ w[at + "mlp.Wi.weight"].T).chunk(2, -1)
        x = x + (functional.gelu(inner) * gate) @ w[at + "mlp.Wo.weight"].T
    x = functional.gelu(norm(x, w["model.final_norm.weight"]) @ w["head.dense.weight"].T)
    x = norm(x, w["head.norm.weight"]) @ w["model.embeddings.tok_embeddings.weight"].T
    return (x + w["decoder.bias"]).numpy()


@pytest.fixture(scope="module", params=[7, 6], ids=["repeated", "traced whole"])
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint whose norms and bias are no constants and whose scores vary."""
    root = tmp_path_factory.mktemp("modernbert") / "source"
    config = {**RELEASED, "local_attention": 8, "mask_token_id": 50284}
    scale = Scale(layers=request.param, hidden=32, heads=4, vocab=300)
    write_checkpoint(Blueprint.of(MODERNBERT, config, {}, scale), root, dtype="float32")
    path, draws = root / "model.safetensors", torch.Generator().manual_seed(0)
    tensors = load_file(path)
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=draws)
        tensors[name] = 1 + 0.3 * noise if tensor.ndim == 1 else noise / tensor.shape[-1] ** 0.5
    save_file(tensors, path)
    return root


def test_exported_logits(folder: Path, tmp_path: Path):
    options = ExportOptions(str(folder), tmp_path / "bundle", variant="logits")
    export_checkpoint(options)
    bundle = Bundle.open(options.output)
    assert bundle.manifest.attention.sliding_window == 4
    length = 40
    ids = torch.randint(300, (length,), generator=torch.Generator().manual_seed(1))
    position = np.arange(length)
    near = np.abs(position[:, None] - position[None]) <= 4
    heads, head_dim = bundle.manifest.model.num_key_value_heads, bundle.manifest.model.head_dim
    feeds: dict[str, Any] = {
        "input_ids": ids[None].numpy(),
        "position_ids": position[None],
        "attention_mask": np.ones((1, 1, length, length), bool),
        "sliding_attention_mask": near[None, None],
        **{
            f"past_key_values.{i}.{part}": np.zeros((1, heads, 0, head_dim), np.float32)
            for i in range(bundle.manifest.model.num_hidden_layers)
            for part in ("key", "value")
        },
        "head_rows": position[None],
        "temperature": np.zeros(1, np.float32),
        "uniform": np.zeros((1, length), np.float32),
    }
    session = open_session(bundle, bundle.manifest.graph)
    logits, last = session.run(["logits", f"present.{5}.key"], feeds)
    np.testing.assert_allclose(logits[0], reference(folder, ids), atol=5e-4, rtol=0)
    engine = load_reference(bundle, (Profile(batch=1, block=length, cache=0, rows=length),))
    answers = engine.run(feeds)
    np.testing.assert_allclose(answers["present.5.key"], last, atol=1e-4)
    np.testing.assert_allclose(answers["logits"], logits, atol=1e-4)
