"""A bundle whose graph is written by hand, so that making one takes milliseconds.

Its network predicts ``TABLE[position]`` everywhere, sure to ``exp(-0.1)``; its keys are the token
ids it is fed. The table lies in the weights file, as external data.

One that is ``extended`` has every input that only some graphs have, and says what it was given:
``entropy`` counts what the second mask shows a row, ``tempered_logsumexp`` is the adapter, and
``tempered_entropy`` is the guidance of the row's partner.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from dlmc.denoiser.config import DenoiserConfig
from dlmc.export.graph_io import graph_inputs, graph_outputs
from dlmc_runtime.engine_record import EngineRecord, Requirements
from dlmc_runtime.engines.base import Inputs
from dlmc_runtime.manifest import HeadVariant, Manifest, Profile, TensorSpec

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
_EXTENDED = replace(_CONFIG, sliding_window=4, adapter_rank=1)
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
_TELLING: tuple[tuple[str, list[str], list[str], dict[str, Any]], ...] = (
    ("Cast", ["sliding_attention_mask"], ["shown"], {"to": TensorProto.FLOAT}),
    ("ReduceSum", ["shown", "last_axis"], ["counts"], {"keepdims": 0}),
    ("Squeeze", ["counts", "middle"], ["visible"], {}),
    ("GatherElements", ["visible", "head_rows"], ["entropy"], {"axis": 1}),
    ("Unsqueeze", ["adapter", "middle"], ["switch"], {}),
    ("Add", ["logsumexp", "switch"], ["tempered_logsumexp"], {}),
    ("Gather", ["guidance", "partner"], ["scale"], {}),
    ("Unsqueeze", ["scale", "middle"], ["scales"], {}),
    ("Add", ["logsumexp", "scales"], ["tempered_entropy"], {}),
)


def _nodes(*, extended: bool) -> list[onnx.NodeProto]:
    told = {name for _, _, outputs, _ in _TELLING for name in outputs} if extended else set()
    plain = [node for node in _NODES if node[2][0] not in told]
    chosen = [*plain, *_TELLING] if extended else plain
    return [helper.make_node(op, i, o, **attributes) for op, i, o, attributes in chosen]


def graph(location: str = WEIGHTS, *, extended: bool = False, **types: str) -> onnx.ModelProto:
    """Return the graph; ``types`` gives inputs or outputs another type than they should have."""
    table = TensorProto(name="table", data_type=TensorProto.INT64, dims=[len(TABLE)])
    table.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(TABLE.nbytes)}.items():
        table.external_data.add(key=key, value=value)
    constants = {"tenth": np.float32(0.1), "last": np.array([2]), "around": np.array([1, 3])}
    if extended:
        constants |= {"middle": np.array([1]), "last_axis": np.array([3])}
    inputs, outputs = _io(extended=extended)

    def values(specs: tuple[Any, ...]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(
                spec.name, _TYPES[types.get(spec.name, spec.dtype)], spec.shape
            )
            for spec in specs
        ]

    made = helper.make_graph(
        _nodes(extended=extended),
        "handmade",
        values(inputs),
        values(outputs),
        [table, *(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def _io(*, extended: bool) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    config = _EXTENDED if extended else _CONFIG
    variant: HeadVariant = "guided" if extended else "plain"
    return graph_inputs(config, variant), graph_outputs(config, 1, variant)


def write(root: Path, *, extended: bool = False, **changes: Any) -> Path:
    """Write a bundle without engines; ``changes`` replaces fields of its manifest."""
    (root / "weights").mkdir(parents=True)
    (root / "config.json").write_text("{}")
    (root / "denoiser.onnx").write_bytes(graph(extended=extended).SerializeToString())
    (root / WEIGHTS).write_bytes(TABLE.tobytes())
    return seal(root, extended=extended, **changes)


def seal(root: Path, *, extended: bool = False, **changes: Any) -> Path:
    """Write a manifest that fits the files as they are."""
    files, (inputs, outputs) = {}, _io(extended=extended)
    for name in ("config.json", "denoiser.onnx", WEIGHTS):
        data = (root / name).read_bytes()
        files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    fields = {
        "family": "handmade",
        "architecture": "Handmade",
        "attention": {
            "regime": "block",
            "block_length": 4,
            "sliding_window": 4 if extended else None,
        },
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
        "head": {"variant": "guided" if extended else "plain", "candidates": 1},
        "precision": "float32",
        "inputs": inputs,
        "outputs": outputs,
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


def feed_extras(inputs: Inputs) -> dict[str, NDArray[np.float32]]:
    """Fill what an ``extended`` graph is fed besides; return the outputs that must say so."""
    batch, rows = inputs.head_rows.shape
    assert inputs.sliding_attention_mask is not None
    assert inputs.adapter is not None
    assert inputs.guidance is not None
    assert inputs.partner is not None
    inputs.sliding_attention_mask[:] = False
    for row in range(batch):
        for position in range(inputs.profile.block):
            inputs.sliding_attention_mask[row, 0, position, : 1 + row + position] = True
    inputs.adapter[:] = (np.arange(batch) + 1) % 2
    inputs.guidance[:] = 1.5 + np.arange(batch)
    inputs.partner[:] = np.arange(batch)[::-1]
    ones = np.ones((1, rows), np.float32)
    return {
        "entropy": (1 + np.arange(batch)[:, None] + inputs.head_rows).astype(np.float32),
        "tempered_logsumexp": inputs.adapter[:, None] * ones,
        "tempered_entropy": inputs.guidance[inputs.partner][:, None] * ones,
    }
