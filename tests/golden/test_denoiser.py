"""Recorded logits, keys and values of whole and cached forwards, on the exported graph."""

import json
from collections.abc import Iterator
from pathlib import Path

import cases
import numpy as np
import pytest
from safetensors.numpy import load_file

from dlmc_runtime.engines.onnxruntime import open_session

# The packs suggest 1e-3 (LLaDA) and 5e-4 (SDAR) in float32.
ATOL = 5e-4


class Graph:
    """The exported graph with logits, fed as the packs record their forwards."""

    def __init__(self, bundle):
        self.session = open_session(bundle, bundle.manifest.graph)
        self.layers = bundle.manifest.model.num_hidden_layers
        self.empty = (bundle.manifest.model.num_key_value_heads, 0, bundle.manifest.model.head_dim)

    def run(self, ids, positions, mask, past=None):
        """Run a forward; ids and positions [B,T], mask [B,T,C+T], past a list of [B,H,C,D]."""
        rows, block = ids.shape
        past = past or [np.zeros((rows, *self.empty), np.float32)] * (2 * self.layers)
        names = [arg.name for arg in self.session.get_inputs() if arg.name.startswith("past")]
        feeds = dict(zip(names, past, strict=True)) | {
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask[:, None],
            "head_rows": np.tile(np.arange(block), (rows, 1)),
            "temperature": np.zeros(rows, np.float32),
            "uniform": np.zeros((rows, block), np.float32),
        }
        present = [arg.name for arg in self.session.get_outputs() if "present" in arg.name]
        logits, *kept = self.session.run(["logits", *present], feeds)
        return logits, kept


@pytest.fixture
def graph(request, exported):
    return Graph(exported(request.param, variant="logits"))


def supported() -> Iterator[Path]:
    for pack in cases.packs():
        if cases.architecture(pack) in cases.FAMILIES:
            yield pack


def packs_of(family: str) -> pytest.MarkDecorator:
    found = [p for p in supported() if cases.FAMILIES[cases.architecture(p)] == family]
    return pytest.mark.parametrize(
        ("graph", "pack"), [(p, p) for p in found], indirect=["graph"], ids=[p.name for p in found]
    )


def positions_of(ids, start=0):
    return np.tile(np.arange(start, start + ids.shape[1]), (len(ids), 1))


@packs_of("llada")
def test_llada_whole_forwards(graph, pack):
    data = load_file(pack / "denoiser.safetensors")
    names = sorted({name.split(".")[0] for name in data if name.startswith("case")})
    assert names
    for name in names:
        ids, wanted = data[f"{name}.input_ids"], data[f"{name}.logits"]
        real = data.get(f"{name}.attention_mask", np.ones_like(ids)).astype(bool)
        mask = np.repeat(real[:, None, :], ids.shape[1], axis=1)
        logits, _ = graph.run(ids, positions_of(ids), mask)
        np.testing.assert_allclose(logits[real], wanted[real], atol=ATOL, rtol=0, err_msg=name)


@packs_of("llada")
def test_llada_forwards_over_a_prefix(graph, pack):
    data = load_file(pack / "denoiser.safetensors")
    if "prefix0.full_ids" not in data:
        pytest.skip(f"{pack.name} records no forward over a prefix")
    full, segment = data["prefix0.full_ids"], data["prefix0.segment_ids"]
    start = int(data["prefix0.start"][0])
    _, kept = graph.run(full, positions_of(full), np.ones((1, *[full.shape[1]] * 2), bool))
    past = [part[:, :, :start] for part in kept]
    mask = np.ones((1, segment.shape[1], start + segment.shape[1]), bool)
    logits, _ = graph.run(segment, positions_of(segment, start), mask, past)
    np.testing.assert_allclose(logits, data["prefix0.logits"], atol=ATOL, rtol=0)


@packs_of("llada")
def test_llada_forwards_inside_a_cache(graph, pack):
    data = load_file(pack / "denoiser.safetensors")
    if "dual0.full_ids" not in data:
        pytest.skip(f"{pack.name} records no forward inside a cache")
    full, segment = data["dual0.full_ids"], data["dual0.segment_ids"]
    start, end = data["dual0.span"].tolist()
    _, kept = graph.run(full, positions_of(full), np.ones((1, *[full.shape[1]] * 2), bool))
    outside = np.r_[0:start, end : full.shape[1]]
    past = [np.ascontiguousarray(part[:, :, outside]) for part in kept]
    mask = np.ones((1, end - start, full.shape[1]), bool)
    logits, _ = graph.run(segment, positions_of(segment, start), mask, past)
    np.testing.assert_allclose(logits, data["dual0.logits"], atol=ATOL, rtol=0)


@packs_of("sdar")
def test_sdar_forwards(graph, pack):
    data = load_file(pack / "denoiser.safetensors")
    names = sorted({name.split(".")[0] for name in data})
    assert names
    for name in names:
        start = f"{name}."
        case = {k.removeprefix(start): v for k, v in data.items() if k.startswith(start)}
        past = None
        if "past_key.0" in case:
            ids, mask = case["prefix_ids"][None], case["prefix_attention_mask"][None].astype(bool)
            _, past = graph.run(ids, positions_of(ids), mask)
            compare_kept(past, case, "past", name)
        logits, present = graph.run(
            case["input_ids"][None],
            case["position_ids"][None],
            case["attention_mask"][None].astype(bool),
            past,
        )
        np.testing.assert_allclose(logits[0], case["logits"], atol=ATOL, rtol=0, err_msg=name)
        if "present_key.0" in case:
            compare_kept(present, case, "present", name)


def compare_kept(found, case, which, name):
    """Compare the keys and values of all layers with those a case calls ``which``."""
    parts = [f"{which}_{part}.{i}" for i in range(len(found) // 2) for part in ("key", "value")]
    for part, own in zip(parts, found, strict=True):
        np.testing.assert_allclose(own[0], case[part], atol=ATOL, rtol=0, err_msg=f"{name}.{part}")


def test_every_forward_of_a_pack_is_compared():
    """A tensor group under a name that no test here reads would pass without being checked."""
    for pack in supported():
        groups = {name.split(".")[0] for name in load_file(pack / "denoiser.safetensors")}
        known = {"prefix0", "dual0"} if cases.architecture(pack) == "LLaDAModelLM" else set()
        assert {g for g in groups if not g.startswith("case")} <= known, json.dumps(sorted(groups))
