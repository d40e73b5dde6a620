"""A bundle whose graph is written by hand, so that making one takes milliseconds.

Its network predicts ``TABLE[position]`` everywhere, sure to ``exp(-0.1)``; its keys are the token
ids it is fed. The table lies in the weights file, as external data.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from dlmc.denoiser.config import DenoiserConfig
from dlmc.export.graph_io import graph_inputs, graph_outputs
from dlmc_runtime.manifest import EngineRecord, Manifest, Profile, Requirements

TABLE = (np.arange(64, dtype=np.int64) * 7 + 3) % 60
WEIGHTS = "weights/model.safetensors"
PROFILES = tuple(
    Profile(batch=b, block=t, cache=24, rows=r) for b in (1, 2) for t, r in ((4, 4), (8, 1))
)
_CONFIG = DenoiserConfig(
    vocab_size=64,
    hidden_size=2,
    intermediate_size=2,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=1,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)
_TYPES = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT, "bool": TensorProto.BOOL}
_NODES: tuple[tuple[str, list[str], list[str], dict[str, Any]], ...] = (
    ("GatherElements", ["position_ids", "head_rows"], ["positions"], {"axis": 1}),
    ("Gather", ["table", "positions"], ["sampled_id"], {}),
    ("Sub", ["positions", "positions"], ["nothing"], {}),
    ("Cast", ["nothing"], ["logsumexp"], {"to": TensorProto.FLOAT}),
    ("Identity", ["logsumexp"], ["entropy"], {}),
    ("Identity", ["logsumexp"], ["tempered_logsumexp"], {}),
    ("Identity", ["logsumexp"], ["tempered_entropy"], {}),
    ("Sub", ["logsumexp", "tenth"], ["sampled_logit"], {}),
    ("Unsqueeze", ["sampled_id", "last"], ["top_ids"], {}),
    ("Unsqueeze", ["sampled_logit", "last"], ["top_logits"], {}),
    ("Cast", ["input_ids"], ["fed"], {"to": TensorProto.FLOAT}),
    ("Unsqueeze", ["fed", "around"], ["present.0.key"], {}),
    ("Neg", ["present.0.key"], ["present.0.value"], {}),
)


def graph(location: str = WEIGHTS, **types: str) -> onnx.ModelProto:
    """Return the graph; ``types`` gives inputs or outputs another type than they should have."""
    table = TensorProto(name="table", data_type=TensorProto.INT64, dims=[len(TABLE)])
    table.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(TABLE.nbytes)}.items():
        table.external_data.add(key=key, value=value)
    constants = {"tenth": np.float32(0.1), "last": np.array([2]), "around": np.array([1, 3])}

    def values(specs: tuple[Any, ...]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                spec.name, _TYPES[types.get(spec.name, spec.dtype)], spec.shape
            )
            for spec in specs
        ]

    made = helper.make_graph(
        [helper.make_node(op, i, o, **attributes) for op, i, o, attributes in _NODES],
        "handmade",
        values(graph_inputs(_CONFIG)),
        values(graph_outputs(_CONFIG, 1, "plain")),
        [table, *(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def write(root: Path, **changes: Any) -> Path:
    """Write a bundle without engines; ``changes`` replaces fields of its manifest."""
    (root / "weights").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "denoiser.onnx").write_bytes(graph().SerializeToString())
    (root / WEIGHTS).write_bytes(TABLE.tobytes())
    return seal(root, **changes)


def seal(root: Path, **changes: Any) -> Path:
    """Write a manifest that fits the files as they are."""
    files = {}
    for name in ("config.json", "denoiser.onnx", WEIGHTS):
        data = (root / name).read_bytes()
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    fields = {
        "family": "handmade",
        "architecture": "Handmade",
        "attention": {"regime": "block", "block_length": 4},
        "shift": 0,
        "tokens": {"mask": 63, "stop": (60,), "pad": 61, "suppressed": (63,)},
        "model": {
            "vocab_size": 64,
            "hidden_size": 2,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 1,
            "max_position_embeddings": 64,
            "parameters": 64,
        },
        "head": {"variant": "plain", "candidates": 1},
        "precision": "float32",
        "inputs": graph_inputs(_CONFIG),
        "outputs": graph_outputs(_CONFIG, 1, "plain"),
        "profiles": PROFILES,
        "sampler": {"name": "low_confidence_static"},
        "max_new_tokens": 16,
        "text": None,
        "tolerances": {},
        "provenance": {"source": "handmade", "versions": {}},
        "config": "config.json",
        "graph": "denoiser.onnx",
        "weights": (WEIGHTS,),
        "files": files,
    }
    made = Manifest.model_validate({**fields, **changes})
    (root / "manifest.json").write_text(made.model_dump_json(indent=2))
    return root


def bind(root: Path, target: str = "onnxruntime-cpu", library: str = "onnxruntime") -> Path:
    """Write the record of an engine whose plan is the bundle's own graph."""
    folder = root / "engines" / target
    folder.mkdir(parents=True)
    record = EngineRecord(
        target=target,
        device="cpu",
        precision="float32",
        profiles=PROFILES,
        plan="denoiser.onnx",
        requires=Requirements(library=library, version="0", match="any"),
        manifest_sha256="0" * 64,
        versions={},
        files={},
    )
    (folder / "engine.json").write_text(record.model_dump_json())
    return rebind(root, target)


def rebind(root: Path, target: str = "onnxruntime-cpu", **changes: Any) -> Path:
    """Make an engine record fit the manifest as it is, and change some of its fields."""
    path = root / "engines" / target / "engine.json"
    record = json.loads(path.read_text())
    record["manifest_sha256"] = hashlib.sha256((root / "manifest.json").read_bytes()).hexdigest()
    path.write_text(json.dumps({**record, **changes}))
    return root
