"""Golden packs: what they hold, and what a right run of each case must do.

`plans` is the dictionary from the reference implementations' names to dlmc's. A case that is not a
requirement is reported with its reason, never dropped.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("DLMC_GOLDENS", Path(__file__).parents[1] / "goldens"))
FAMILIES = {
    "LLaDAModelLM": "llada",
    "DreamModel": "dream",
    "SDARForCausalLM": "sdar",
    "A2DQwen3LMHeadModel": "a2d",
    "A2DQwen2LMHeadModel": "a2d",
    "Fast_dLLM_QwenForCausalLM": "fast_dllm_v2",
    "NemotronLabsDiffusionModel": "nemotron_labs_diffusion",
    "StableDiffcoderForCausalLM": "stable_diffcoder",
    "DiffusionGemmaForBlockDiffusion": "diffusion_gemma",
    "LLaDA2MoeModelLM": "llada2",
}
APART = ("DiffusionGemmaForBlockDiffusion",)
"""Architectures whose packs have another layout, and a test of their own."""


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

    @property
    def algorithm(self) -> str:
        """What was run, in the pack's words."""
        return str(self.data.get("algorithm", ""))

    @property
    def mask_id(self) -> int | None:
        """The mask id that a case states, for checkpoints whose config does not."""
        stated = self.data.get("mask_id", self.parameters.get("mask_id"))
        return None if stated is None else int(stated)


@dataclass(frozen=True)
class Recorded:
    """What a right run does: the canvas after each forward, the last one, and the forwards.

    ``canvases`` is None where a pack states only how a corrected run ends. Forwards of the
    reference that change nothing are left out, as are the pads it puts beside short rows.
    """

    canvases: list[list[list[int]]] | None
    finals: list[list[int]]
    forwards: int


def packs() -> list[Path]:
    """Return the folders of the packs in the common layout."""
    return [pack for pack in _every_pack() if architecture(pack) not in APART]


def packs_of(wanted: str) -> list[Path]:
    """Return the folders of the packs of one architecture."""
    return [pack for pack in _every_pack() if architecture(pack) == wanted]


def _every_pack() -> list[Path]:
    return sorted(path.parent for path in ROOT.glob("*/config.json"))


def architecture(pack: Path) -> str:
    """Return the first architecture of a pack's checkpoint."""
    architectures: list[str] = json.loads((pack / "config.json").read_text())["architectures"]
    return architectures[0]


def family(pack: Path) -> str | None:
    """Return the family that a pack is of; None for one that is not supported.

    The two kinds of A2D checkpoints share their configuration: the sampler tells them apart.
    """
    found = FAMILIES.get(architecture(pack))
    if found == "a2d" and "bd3lm" in first_case(pack).algorithm:
        return "a2d_bd3lm"
    return found


def first_case(pack: Path) -> Case:
    """Return the first case of a pack."""
    return next(iter(cases_of(pack)))


def cases_of(pack: Path) -> Iterator[Case]:
    """Yield the cases of a pack."""
    for data in json.loads((pack / "samplers.json").read_text())["cases"]:
        yield Case(pack, data)


def cases() -> Iterator[Case]:
    """Yield all cases of all packs."""
    for pack in packs():
        yield from cases_of(pack)


def unsupported(case: Case) -> str | None:
    """Return why a case is not run, None where it is."""
    if case.data.get("reference_bug") and "corrected" not in case.data:
        return "shows a defect of the reference implementation"
    if "REFQUIRK" in case.data["name"]:
        return "shows a quirk of the reference implementation"
    if family(case.pack) is None:
        return f"architecture {architecture(case.pack)} is not supported yet"
    return None


def prompts(case: Case) -> list[tuple[int, ...]]:
    """Return the prompts without padding."""
    masks = case.data.get("prompt_attention_mask")
    pads = _pads(case) if masks else [0] * len(case.data["prompts"])
    return [tuple(row[pad:]) for row, pad in zip(case.data["prompts"], pads, strict=True)]


def recorded(case: Case) -> Recorded:
    """Return what a run of ``case`` must reproduce."""
    noop = case.data.get("num_noop_forwards", 0)
    right = case.data.get("corrected")
    if right is not None:
        canvases = right.get("canvases")
        return Recorded(
            None if canvases is None else [_unpadded(case, state) for state in canvases],
            _unpadded(case, right["final_ids"]),
            right["num_forwards"] - right.get("num_noop_forwards", 0),
        )
    canvases = [_unpadded(case, state) for state in case.data["canvases"]]
    changed = [
        state for i, state in enumerate(canvases) if i == 0 or not noop or state != canvases[i - 1]
    ]
    finals = _unpadded(case, case.data["finals"])
    return Recorded(changed, finals, case.data["num_forwards"] - noop)


def _unpadded(case: Case, rows: list[list[int]]) -> list[list[int]]:
    return [
        row[pad:][:length]
        for row, pad, length in zip(rows, _pads(case), _lengths(case), strict=True)
    ]


def _pads(case: Case) -> list[int]:
    """Return how many pads the reference puts before each row."""
    masks = case.data.get("prompt_attention_mask")
    if masks:
        return [row.count(0) for row in masks]
    lengths = [len(row) for row in case.data["prompts"]]
    if case.algorithm == "dllm_bd3lm/sample":  # to a whole number of blocks
        block = case.parameters.get("block_size", 32)
        return [-(-max(lengths) // block) * block - length for length in lengths]
    return [0] * len(lengths)


def _lengths(case: Case) -> list[int | None]:
    """Return how many positions of each row are not pads; None for all of them."""
    lengths = [len(row) for row in case.data["prompts"]]
    if case.algorithm == "dllm_mdlm/sample":
        return [length + case.parameters.get("max_new_tokens", 128) for length in lengths]
    if case.algorithm == "dllm_mdlm/infill":
        return list(lengths)
    if case.algorithm == "dllm_bd3lm/sample":
        return [_ended(case, row) for row in range(len(lengths))]
    return [None] * len(lengths)


def _ended(case: Case, row: int) -> int | None:
    """Return how long a row is at the end of its first block with the end of text.

    The reference goes on with it until all rows of the batch have ended.
    """
    block = case.parameters.get("block_size", 32)
    start = len(case.data["prompts"][row])
    answer = case.data["finals"][row][_pads(case)[row] + start :]
    eos = case.data["eos_id"]
    return start + (answer.index(eos) // block + 1) * block if eos in answer else None
