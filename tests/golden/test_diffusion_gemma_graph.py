"""DiffusionGemma's recorded forwards, on the exported graph: what is stored, and both phases."""

import json
from dataclasses import dataclass

import cases
import numpy as np
import pytest
from gemma import Graph, arrived
from safetensors.numpy import load_file

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc_runtime.bundle import Bundle

PACKS = cases.packs_of("DiffusionGemmaForBlockDiffusion")
# What the pack suggests.
ATOL, LOGITS_ATOL = 1e-4, 5e-4


@dataclass
class Call:
    """One recorded row of a case of forwards, without the padding before it."""

    case: str
    arrays: dict[str, np.ndarray]
    row: int
    pads: int
    temperature: float

    def calls(self, kind):
        """Return the names of the calls of the case that begin so, in order."""
        names = {name.split("/")[1] for name in self.arrays if name.startswith(f"{self.case}/")}
        return sorted(name for name in names if name.startswith(kind))

    def array(self, call, name):
        return self.arrays[f"{self.case}/{call}/{name}"][self.row]

    def stored(self, name):
        """Return what all causal calls say about the positions they fed, one after the other."""
        axis = 0 if name == "input_ids" else 1
        parts = [self.array(call, name) for call in self.calls("enc")]
        return np.split(np.concatenate(parts, axis), [self.pads], axis)[1]

    def kept(self, name):
        """Return what the reference's cache holds in the end, without padding."""
        last = self.array(self.calls("enc")[-1], name)
        forgotten = self.pads + len(self.stored("input_ids")) - last.shape[1]
        return last[:, max(self.pads - forgotten, 0) :]


def calls():
    """Yield the rows of all recorded forwards, as pytest's parameters."""
    for pack in PACKS:
        arrays = load_file(pack / "denoiser.safetensors")
        for case in json.loads((pack / "denoiser.json").read_text())["cases"]:
            name, length = case["name"], case["prompt_len"]
            for row, own in enumerate(case["row_lens"]):
                call = Call(name, arrays, row, length - own, case["sc_temperature"])
                yield pytest.param(pack, call, id=f"{pack.name}/{name}-{row}")


@pytest.fixture(scope="module")
def with_logits(tmp_path_factory):
    """Return a function that exports a pack with logits, once."""
    made = {}

    def export(pack):
        if pack not in made:
            output = tmp_path_factory.mktemp("logits") / pack.name
            options = ExportOptions(
                source=str(pack), output=output, tokenizer=False, variant="logits"
            )
            made[pack] = Bundle.open(export_checkpoint(options))
        return Graph(made[pack])

    return export


@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
@pytest.mark.parametrize(("pack", "call"), list(calls()))
def test_recorded_forwards(with_logits, pack, call, chunk):
    graph = with_logits(pack)
    ids, layers = call.stored("input_ids"), len(graph.cache.past) // 2
    presents = []
    for start in range(0, len(ids), chunk):
        fed = ids[start : start + chunk]
        presents.append(graph.feed(fed, call.pads + start, causal=True)[2])
    for layer in range(layers):
        for part, name in enumerate("kv"):
            found = np.concatenate([one[2 * layer + part][0] for one in presents], axis=1)
            close(found, call.stored(f"{name}_new.{layer}"), f"{name} of layer {layer}")
            inside = arrived(graph, 2 * layer + part)
            close(inside, call.kept(f"{name}_cache.{layer}"), f"cached {name} of layer {layer}")
    canvas, first = call.array("dec_zero", "input_ids"), call.pads + len(ids)
    logits, told, _ = graph.feed(canvas, first, causal=False, temperature=call.temperature)
    close(logits, call.array("dec_zero", "logits"), "logits of the first step", LOGITS_ATOL)
    close(told, call.array("dec_sc", "soft_embeds"), "what it expects")
    canvas = call.array("dec_sc", "input_ids")
    logits, _, _ = graph.feed(canvas, first, causal=False, expected=told)
    close(logits, call.array("dec_sc", "logits"), "logits of the second step", LOGITS_ATOL)


def close(found, wanted, where, atol=ATOL):
    """Compare arrays, by default as closely as the pack suggests for what is no logit."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol, err_msg=where)
