"""`dlmc build`: check, plan, build, record."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dlmc.targets import TARGETS
from dlmc.targets.profiles import ProfileRequest, choose
from dlmc_runtime.bundle import Bundle, engine_folder
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.manifest import EngineRecord, Profile

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class BuildPlan:
    """What a build would make."""

    bundle: Bundle
    target: str
    profiles: tuple[Profile, ...]

    @property
    def output(self) -> Path:
        """Where the engine record goes."""
        return self.bundle.root / engine_folder(self.target) / "engine.json"


def memory(bundle: Bundle, profile: Profile) -> dict[str, int]:
    """Return the bytes a profile needs besides the weights: caches, inputs and head outputs."""
    model, b, t, c, r = bundle.manifest.model, *_sizes(profile)
    layers = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim
    candidates = bundle.manifest.head.candidates
    return {
        "cache": layers * b * c * _FLOAT_BYTES,
        "present": layers * b * t * _FLOAT_BYTES,
        "inputs": b * (16 * t + t * (c + t) + 12 * r + 4),
        "outputs": b * r * (12 * candidates + 24),
        "logits": b * r * model.vocab_size * _FLOAT_BYTES,
    }


def _sizes(profile: Profile) -> tuple[int, int, int, int]:
    return profile.batch, profile.block, profile.cache, profile.rows


def plan_build(root: Path, target: str, request: ProfileRequest) -> BuildPlan:
    """Check everything that can be checked before the work starts.

    Raises:
        UsageError: unknown target, or shapes that contradict the family.
        BundleError: the bundle does not load or has no weights.
    """
    if target not in TARGETS:
        raise UsageError(f"no target is called {target!r}", f"choose one of {', '.join(TARGETS)}")
    bundle = Bundle.open(root)
    bundle.require_weights()
    return BuildPlan(bundle, target, choose(bundle.manifest, request))


def build_engine(plan: BuildPlan) -> EngineRecord:
    """Build the engine and write its record, which is what makes it loadable.

    Raises:
        EngineError: the target's library refuses the graph or a profile, or the disk is full.
    """
    build: Callable[[BuildPlan], EngineRecord] = import_module(TARGETS[plan.target]).build
    record = build(plan)
    partial = plan.output.with_name(".engine.json.partial")
    try:
        plan.output.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
        os.replace(partial, plan.output)  # noqa: PTH105  (atomic on every platform)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise EngineError(
            f"{plan.output} cannot be written ({error.strerror})", "make room and build again"
        ) from error
    return record
