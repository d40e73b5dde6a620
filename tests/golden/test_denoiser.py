"""Recorded logits, keys and values of whole and cached forwards, on the exported graph."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cases
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.onnxruntime import open_session

# The packs suggest 1e-3 (LLaDA, Dream) and 5e-4 (all others) in float32.
ATOL = 5e-4

# Packs whose configuration is that of another family.
ASKED_FOR = {"a2d_qwen3_bd3lm": "a2d_bd3lm"}


@dataclass(frozen=True)
class Recorded:
    """The forwards of a pack: tensors by the name of their group, without it."""

    pack: Path
    groups: dict[str, dict[str, np.ndarray]]

    @classmethod
    def of(cls, pack: Path) -> "Recorded":
        groups: dict[str, dict[str, np.ndarray]] = {}
        for name, array in load_file(pack / "denoiser.safetensors").items():
            group, _, rest = name.partition(".")
            groups.setdefault(group, {})[rest] = array
        return cls(pack, groups)

    @property
    def batched(self) -> bool:
        """Whether arrays have an axis for rows, and masks say which positions are no padding."""
        return self.groups["case0"]["input_ids"].ndim == 2


class Graph:
    """The exported graph with logits, fed as the packs record their forwards."""

    def __init__(self, bundle: Bundle):
        self.session = open_session(bundle, bundle.manifest.graph)
        self.layers = bundle.manifest.model.num_hidden_layers
        self.empty = (bundle.manifest.model.num_key_value_heads, 0, bundle.manifest.model.head_dim)

    def run(self, ids, positions, mask, past=None, **extra):
        """Run a forward; ids and positions [B,T], mask [B,T,C+T], past a list of [B,H,C,D]."""
        rows, block = ids.shape
        past = past or [np.zeros((rows, *self.empty), np.float32)] * (2 * self.layers)
        names = [arg.name for arg in self.session.get_inputs() if arg.name.startswith("past")]
        feeds = dict(zip(names, past, strict=True)) | {
            **extra,
            "input_ids": ids,
            "position_ids": positions,
            "attention_mask": mask[:, None].astype(bool),
            "head_rows": np.tile(np.arange(block), (rows, 1)),
            "temperature": np.zeros(rows, np.float32),
            "uniform": np.zeros((rows, block), np.float32),
        }
        present = [arg.name for arg in self.session.get_outputs() if "present" in arg.name]
        logits, *kept = self.session.run(["logits", *present], feeds)
        return logits, kept


def mask_id(pack: Path) -> int | None:
    """Return the mask id that a pack's sampler runs state, where its configuration does not."""
    if "mask_token_id" in json.loads((pack / "config.json").read_text()):
        return None
    case: dict[str, Any] = json.loads((pack / "samplers.json").read_text())["cases"][0]
    return int(case["mask_id"] if "mask_id" in case else case["parameters"]["mask_id"])


RECORDED = [Recorded.of(pack) for pack in cases.packs() if cases.family(pack) is not None]


@pytest.fixture(scope="module")
def graph(request, tmp_path_factory):
    pack: Path = request.param.pack
    output = tmp_path_factory.mktemp("golden") / pack.name
    return exported(pack, output, family=ASKED_FOR.get(pack.name), mask_id=mask_id(pack))


def exported(source: Path, output: Path, **options: Any) -> Graph:
    export_checkpoint(
        ExportOptions(
            source=str(source), output=output, tokenizer=False, variant="logits", **options
        )
    )
    return Graph(Bundle.open(output))


def recorded(*, batched: bool, group: str | None = None) -> pytest.MarkDecorator:
    """Run a test for every pack of one layout that records such a group."""
    found = [r for r in RECORDED if r.batched is batched and (group is None or group in r.groups)]
    return pytest.mark.parametrize(
        ("graph", "record"),
        [(record, record) for record in found],
        indirect=["graph"],
        ids=[record.pack.name for record in found],
    )


def positions_of(ids, start=0):
    return np.tile(np.arange(start, start + ids.shape[1]), (len(ids), 1))


def everything(rows, columns):
    return np.ones((1, rows, columns), bool)


def close(found, wanted, name):
    np.testing.assert_allclose(found, wanted, atol=ATOL, rtol=0, err_msg=name)


@recorded(batched=True)
def test_whole_forwards_of_padded_batches(graph, record):
    for name, case in record.groups.items():
        if not name.startswith("case"):
            continue
        ids = case["input_ids"]
        real = case.get("attention_mask", np.ones_like(ids)).astype(bool)
        mask = np.repeat(real[:, None, :], ids.shape[1], axis=1)
        positions = case.get("position_ids", positions_of(ids))
        logits, _ = graph.run(ids, positions, mask)
        close(logits[real], case["logits"][real], name)


@recorded(batched=True, group="prefix0")
def test_forwards_over_a_prefix(graph, record):
    case = record.groups["prefix0"]
    full, segment, start = case["full_ids"], case["segment_ids"], int(case["start"][0])
    _, kept = graph.run(full, positions_of(full), everything(*[full.shape[1]] * 2))
    past = [part[:, :, :start] for part in kept]
    mask = everything(segment.shape[1], start + segment.shape[1])
    logits, _ = graph.run(segment, positions_of(segment, start), mask, past)
    close(logits, case["logits"], "prefix0")


@recorded(batched=True, group="dual0")
def test_forwards_inside_a_cache(graph, record):
    case = record.groups["dual0"]
    full, segment = case["full_ids"], case["segment_ids"]
    start, end = case["span"].tolist()
    _, kept = graph.run(full, positions_of(full), everything(*[full.shape[1]] * 2))
    outside = np.r_[0:start, end : full.shape[1]]
    past = [np.ascontiguousarray(part[:, :, outside]) for part in kept]
    mask = everything(end - start, full.shape[1])
    logits, _ = graph.run(segment, positions_of(segment, start), mask, past)
    close(logits, case["logits"], "dual0")


@recorded(batched=False)
def test_forwards(graph, record):
    for name, case in record.groups.items():
        past = prefix(graph, case, name)
        if "stale_block_ids" in case:
            past = with_stale_block(graph, case, past, name)
        mask = case["attention_mask"][None]
        if "stale_block_ids" in case:  # the rows that are replaced come last here
            outside = outside_of(case)
            mask = np.concatenate((mask[..., outside], mask[..., ~outside]), axis=-1)
        logits, present = graph.run(case["input_ids"][None], case["position_ids"][None], mask, past)
        real = case.get("row_valid", np.ones(len(logits[0]), bool))
        close(logits[0][real], case["logits"][real], name)
        if "present_key.0" in case:
            compare_kept(present, case, "present", name)


def prefix(graph, case, name):
    """Return the keys and values of a case's prefix, compared with the recorded ones."""
    if "prefix_ids" not in case:
        return None
    ids = case["prefix_ids"][None]
    positions = case["prefix_position_ids"][None] if "prefix_position_ids" in case else None
    square = everything(ids.shape[1], ids.shape[1])
    mask = case["prefix_attention_mask"][None] if "prefix_attention_mask" in case else square
    _, past = graph.run(ids, positions_of(ids) if positions is None else positions, mask)
    compare_kept(past, case, "past", name, real=mask[0].any(-1))
    return past


def outside_of(case):
    """Return which columns of a sub-block's mask are not its own rows."""
    start = len(case["prefix_ids"]) + int(case["replace_position"][0])
    columns = np.arange(case["attention_mask"].shape[-1])
    return (columns < start) | (columns >= start + len(case["input_ids"]))


def with_stale_block(graph, case, past, name):
    """Return the context of a sub-block: the prefix, and its block before the sub-block changed."""
    ids = case["stale_block_ids"][None]
    start = len(case["prefix_ids"])
    mask = everything(ids.shape[1], start + ids.shape[1])
    _, block = graph.run(ids, positions_of(ids, start), mask, past)
    compare_kept(block, case, "block", name)
    outside = outside_of(case)
    whole = [np.concatenate(pair, axis=2) for pair in zip(past, block, strict=True)]
    return [np.ascontiguousarray(part[:, :, outside]) for part in whole]


def compare_kept(found, case, which, name, real=slice(None)):
    """Compare the keys and values of all layers with those a case calls ``which``."""
    parts = [f"{which}_{part}.{i}" for i in range(len(found) // 2) for part in ("key", "value")]
    for part, own in zip(parts, found, strict=True):
        if part in case:
            close(own[0][:, real], case[part][:, real], f"{name}.{part}")


@pytest.mark.parametrize(
    "record", [r for r in RECORDED if list(r.pack.glob("*/adapter_config.json"))]
)
def test_an_adapter_is_as_good_as_merged_weights(record, tmp_path):
    (settings,) = record.pack.glob("*/adapter_config.json")
    case = record.groups["case3"]
    both = [np.stack([case[name]] * 2) for name in ("input_ids", "position_ids", "attention_mask")]
    graph = exported(record.pack, tmp_path / "switched", adapter=settings.parent.name)
    (off, on), _ = graph.run(*both, adapter=np.array([0, 1], np.float32))
    close(off, case["logits"], "off")

    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "config.json").write_text((record.pack / "config.json").read_text())
    save_file(merge(record.pack, settings), merged / "model.safetensors")
    logits, _ = exported(merged, tmp_path / "plain").run(*both)
    close(on, logits[1], "on")
    assert np.abs(on - off).max() > 10 * ATOL


def merge(pack: Path, settings: Path) -> dict[str, np.ndarray]:
    """Return a checkpoint's tensors with an adapter's added to them."""
    stated = json.loads(settings.read_text())
    weights = load_file(pack / "model.safetensors")
    adapter = load_file(settings.with_name("adapter_model.safetensors"))
    for name, a in adapter.items():
        if name.endswith("lora_A.weight"):
            b = adapter[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
            weights[target] += stated["lora_alpha"] / stated["r"] * b @ a
    return weights


def test_every_forward_of_a_pack_is_compared():
    """A tensor group under a name that no test here reads would pass without being checked."""
    assert RECORDED
    for record in RECORDED:
        known = {"prefix0", "dual0"} if record.batched else set()
        odd = {group for group in record.groups if not group.startswith("case")} - known
        assert not odd, f"{record.pack.name}: {sorted(odd)}"
