"""The families dlmc reads, one file each, and the table that lists them."""

import difflib
from collections.abc import Mapping
from typing import Any

from dlmc.families.a2d import A2D, A2D_BD3LM
from dlmc.families.coda import CODA
from dlmc.families.diffusion_gemma import DIFFUSION_GEMMA
from dlmc.families.dream import DREAM
from dlmc.families.fast_dllm_v2 import FAST_DLLM_V2
from dlmc.families.illada import ILLADA
from dlmc.families.llada import LLADA
from dlmc.families.llada2 import LLADA2
from dlmc.families.llada_moe import LLADA_MOE
from dlmc.families.modernbert import MODERNBERT
from dlmc.families.nemotron_labs_diffusion import NEMOTRON_LABS_DIFFUSION
from dlmc.families.rnd1 import RND1
from dlmc.families.sdar import SDAR, SDAR_MOE
from dlmc.families.spec import Family, FamilySpec, Overrides
from dlmc.families.stable_diffcoder import STABLE_DIFFCODER
from dlmc_runtime.errors import CheckpointError, UsageError

__all__ = ["FAMILIES", "Family", "FamilySpec", "Overrides", "detect"]

# Of those that claim one architecture the first is meant, unless another is asked for.
FAMILIES: tuple[Family, ...] = (
    LLADA,
    ILLADA,
    DREAM,
    SDAR,
    A2D,
    A2D_BD3LM,
    FAST_DLLM_V2,
    NEMOTRON_LABS_DIFFUSION,
    STABLE_DIFFCODER,
    CODA,
    MODERNBERT,
    DIFFUSION_GEMMA,
    LLADA2,
    LLADA_MOE,
    SDAR_MOE,
    RND1,
)


def detect(
    config: Mapping[str, Any], override: str | None = None, prefer: str | None = None
) -> Family:
    """Return the family of a checkpoint: by ``architectures``, confirmed by the keys present.

    ``model_type`` is not asked: released checkpoints of different networks share it.

    Args:
        config: contents of ``config.json``.
        override: a family's name, which settles the question whatever ``config`` says.
        prefer: a family's name, which settles it where several read the same configuration.

    Raises:
        UsageError: ``override`` names no family.
        CheckpointError: no family claims the architecture, or the keys are of another network.
    """
    if override is not None:
        return _by_name(override)
    stated = config.get("architectures")
    names = [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []
    if not names:
        raise CheckpointError(
            "config.json: 'architectures' names no network",
            f"state --family {_either(_family_names())}",
        )
    claimed = [family for family in FAMILIES if set(names) & set(family.architectures)]
    if not claimed:
        raise _unknown(names[0])
    matching = [family for family in claimed if family.matches(config)]
    if matching:
        return next((family for family in matching if family.name == prefer), matching[0])
    reasons = ", ".join(claimed[0].mismatches(config))
    raise CheckpointError(
        f"config.json: says {names[0]} but its keys are those of another network: {reasons}",
        f"dlmc cannot read it; --family {claimed[0].name} overrides this",
    )


def _family_names() -> list[str]:
    return [family.name for family in FAMILIES]


def _either(names: list[str]) -> str:
    return " or ".join(names)


def _by_name(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    near = difflib.get_close_matches(name, _family_names(), n=2, cutoff=0.6)
    raise UsageError(f"unknown family {name!r}", f"use {_either(near or _family_names())}")


def _unknown(architecture: str) -> CheckpointError:
    known = {name: family for family in reversed(FAMILIES) for name in family.architectures}
    near = difflib.get_close_matches(architecture, known, n=2, cutoff=0.5)
    families = dict.fromkeys(known[name].name for name in near)
    nearest = f"; nearest: {', '.join(families)}" if near else ""
    return CheckpointError(
        f"config.json: unknown architecture {architecture!r}{nearest}",
        f"if it is such a network under another name, state --family {_either(_family_names())}",
    )
