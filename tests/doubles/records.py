"""Records of a bundle as JSON, and ways to spoil them."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from dlmc_runtime.errors import BundleError
from dlmc_runtime.manifest import parse_manifest

Place = tuple[str | int, ...]
HASH = "0" * 64
PROFILE = {"batch": 1, "block": 8, "cache": 64, "rows": 8}
MANIFEST: dict[str, Any] = {
    "schema_version": 2,
    "family": "sdar",
    "architecture": "SDARForCausalLM",
    "attention": {"regime": "block", "block_length": 8},
    "shift": 0,
    "tokens": {"mask": 9, "stop": [2], "pad": 0, "bos": None, "suppressed": [9]},
    "model": {
        "vocab_size": 16,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "parameters": 1000,
    },
    "head": {"variant": "plain", "candidates": 4},
    "precision": "float32",
    "inputs": [{"name": "input_ids", "dtype": "int64", "shape": ["batch", "block"]}],
    "outputs": [{"name": "top_ids", "dtype": "int64", "shape": ["batch", "rows", 4]}],
    "profiles": [PROFILE],
    "sampler": {"name": "low_confidence_dynamic", "parameters": {"threshold": 0.9}},
    "max_new_tokens": 32,
    "text": {"tokenizer": "tokenizer/tokenizer.json"},
    "tolerances": {"top_logits": {"atol": 1e-3}},
    "provenance": {"source": "tiny", "versions": {"dlmc": "0.1.0"}},
    "config": "config.json",
    "graph": "denoiser.onnx",
    "weights": ["weights/model.safetensors"],
    "files": {
        "config.json": {"size": 1, "sha256": HASH},
        "denoiser.onnx": {"size": 1, "sha256": HASH},
        "weights/model.safetensors": {"size": 1, "sha256": HASH},
        "tokenizer/tokenizer.json": {"size": 1, "sha256": HASH},
    },
}
ENGINE: dict[str, Any] = {
    "schema_version": 2,
    "target": "onnxruntime-cpu",
    "device": "cpu",
    "precision": "float32",
    "profiles": [PROFILE],
    "plan": "denoiser.onnx",
    "manifest_sha256": HASH,
    "requires": {"library": "onnxruntime", "version": "1.32.0", "match": "any"},
    "versions": {"onnxruntime": "1.32.0"},
    "files": {},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def places(data: Any, prefix: Place = ()) -> Iterator[Place]:
    """List the path of every value inside ``data``."""
    if not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*prefix, key)
        yield from places(value, (*prefix, key))


def changed(place: Place, value: object) -> Any:
    """Return the manifest with the value at ``place`` replaced."""
    data: Any = copy.deepcopy(MANIFEST)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return data


def refusal(data: object, parse: Callable[[bytes], object] = parse_manifest) -> str:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(BundleError) as caught:
        parse(text)
    assert caught.value.hint
    return caught.value.message
