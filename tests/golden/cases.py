"""Golden packs: what they hold, and how their cases map to requests.

The packs name things as the reference implementations do; this file is the dictionary. A case
that cannot be expressed yet is reported with its reason, never dropped.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlmc_runtime.samplers.config import SamplerConfig

ROOT = Path(os.environ.get("DLMC_GOLDENS", Path(__file__).parents[1] / "goldens"))
FAMILIES = {"LLaDAModelLM": "llada", "SDARForCausalLM": "sdar"}


@dataclass(frozen=True)
class Case:
    """One recorded sampler run."""

    pack: Path
    data: dict[str, Any]

    @property
    def name(self) -> str:
        """Pack and case, as pytest shows them."""
        return f"{self.pack.name}/{self.data['name']}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The reference function's own arguments."""
        parameters: dict[str, Any] = self.data["parameters"]
        return parameters


@dataclass(frozen=True)
class Recorded:
    """What a right run does: the canvas after each forward, the last one, and the forwards.

    ``canvases`` is None where a pack states only how a corrected run ends. Forwards of the
    reference that change nothing are left out, as are the pads it puts before short prompts.
    """

    canvases: list[list[list[int]]] | None
    finals: list[list[int]]
    forwards: int


@dataclass(frozen=True)
class Plan:
    """How to reproduce a case: a request per row, and what the export must be told."""

    sampler: SamplerConfig
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    suppress: tuple[int, ...] = ()
    exported_block: int | None = None

    @property
    def scheduled(self) -> bool:
        """Whether a schedule sets the pace, the same for all rows, and not confidence."""
        sampler = self.sampler
        free = sampler.threshold, sampler.factor
        paced = free == (None, None) and sampler.name != "low_confidence_dynamic"
        return paced and not self.stop_ids


def packs() -> list[Path]:
    """Return every pack's folder."""
    return sorted(path.parent for path in ROOT.glob("*/config.json"))


def architecture(pack: Path) -> str:
    """Return the first architecture of a pack's checkpoint."""
    architectures: list[str] = json.loads((pack / "config.json").read_text())["architectures"]
    return architectures[0]


def cases() -> Iterator[Case]:
    """Yield all cases of all packs."""
    for pack in packs():
        for data in json.loads((pack / "samplers.json").read_text())["cases"]:
            yield Case(pack, data)


def unsupported(case: Case) -> str | None:
    """Return why a case is not run, None where it is."""
    if case.data.get("reference_bug") and "corrected" not in case.data:
        return "shows a defect of the reference implementation"
    if "REFQUIRK" in case.data["name"]:
        return "shows a quirk of the reference implementation"
    if architecture(case.pack) not in FAMILIES:
        return f"architecture {architecture(case.pack)} is not supported yet"
    if case.parameters.get("cfg_scale"):
        return "classifier-free guidance is not supported yet"
    spans = {span[0] for span in case.data.get("forward_spans", [])}
    if spans - {"full"}:
        return f"cached forwards of a full-sequence family are not supported yet: {sorted(spans)}"
    return None


def prompts(case: Case) -> list[tuple[int, ...]]:
    """Return the prompts without padding."""
    return [tuple(row) for row in _unpadded(case, case.data["prompts"])]


def recorded(case: Case) -> Recorded:
    """Return what a run of ``case`` must reproduce."""
    right = case.data.get("corrected")
    if right is not None:
        return Recorded(right.get("canvases"), right["final_ids"], right["num_forwards"])
    noop = case.data.get("num_noop_forwards", 0)
    canvases = [_unpadded(case, state) for state in case.data["canvases"]]
    changed = [
        state for i, state in enumerate(canvases) if i == 0 or not noop or state != canvases[i - 1]
    ]
    finals = _unpadded(case, case.data["finals"])
    return Recorded(changed, finals, case.data["num_forwards"] - noop)


def _unpadded(case: Case, rows: list[list[int]]) -> list[list[int]]:
    return [row[pad:] for row, pad in zip(rows, _pads(case), strict=True)]


def _pads(case: Case) -> list[int]:
    masks = case.data.get("prompt_attention_mask")
    return [row.count(0) for row in masks] if masks else [0] * len(case.data["prompts"])


def _llada(case: Case) -> Plan:
    """ML-GSAI/LLaDA and Fast-dLLM `generate`: steps are counted over all blocks."""
    p = dict(case.parameters)
    length, block = p.pop("gen_length"), p.pop("block_length")
    steps = p.pop("steps") * block // length
    names = {"low_confidence": "low_confidence", "random": "random"}
    threshold, factor = p.pop("threshold", None), p.pop("factor", None)
    ends = [p.pop("eos_token_id", None), p.pop("eot_token_id", None)]
    defer = p.pop("confidence_eos_eot_inf", False)
    suppress = p.pop("logits_eos_inf", False)
    sampler = SamplerConfig(
        name=names[p.pop("remasking", "low_confidence")],
        steps=None if threshold or factor else steps,
        threshold=threshold,
        factor=factor,
        temperature=p.pop("temperature", 0.0),
        block_length=block,
        defer_ids=tuple(end for end in ends if end is not None) if defer else (),
    )
    _nothing_left(case, p, {"mask_id", "cfg_scale"})
    return Plan(sampler, length, suppress=(ends[0],) if suppress else ())


def _sdar(case: Case) -> Plan:
    """JetAstra/SDAR `block_diffusion_generate`: its temperature is 1 where none is given.

    The packs replace the draw by the most probable token, which is temperature 0 here. A case
    that changes the temperature draws at 0 uniform numbers: the first candidate. Candidates are
    in the order of their logits only where some filter is on, so one that lets all through is.
    """
    p = dict(case.parameters)
    everything = math.nextafter(1.0, 0.0) if p.get("temperature") else 1.0
    sampler = SamplerConfig(
        name=p.pop("remasking_strategy", "low_confidence_dynamic"),
        steps=p.pop("denoising_steps", 8),
        threshold=p.pop("confidence_threshold", None),
        temperature=p.pop("temperature", 0.0),
        top_k=p.pop("top_k", 0),
        top_p=min(p.pop("top_p", 1.0), everything),
    )
    length, stop = p.pop("gen_length"), p.pop("stopping_criteria_idx", None) or ()
    block = p.pop("block_length", None)
    _nothing_left(case, p, {"mask_id"})
    return Plan(sampler, length, stop_ids=frozenset(stop), exported_block=block)


def _nothing_left(case: Case, parameters: dict[str, Any], known: set[str]) -> None:
    left = parameters.keys() - known
    if left:
        raise ValueError(f"{case.name}: nothing here understands {sorted(left)}")


_PLANS: dict[str, Callable[[Case], Plan]] = {"llada": _llada, "sdar": _sdar}


def plan(case: Case) -> Plan:
    """Translate a supported case."""
    return _PLANS[FAMILIES[architecture(case.pack)]](case)
