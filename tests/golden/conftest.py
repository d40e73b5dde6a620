"""Bundles of the golden packs, exported and built once a session."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import pytest

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.bundle import Bundle

Exporter = Callable[..., Bundle]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """Return a function that exports a pack with the given options, or finds the export again."""
    made: dict[str, Bundle] = {}

    def export(pack: Path, **options: Any) -> Bundle:
        key = f"{pack}{sorted(options.items())}"
        if key not in made:
            output = tmp_path_factory.mktemp("golden") / pack.name
            export_checkpoint(
                ExportOptions(
                    source=str(pack),
                    output=output,
                    tokenizer=False,
                    candidates=_all_but_suppressed(pack, options.get("suppress", ())),
                    **options,
                )
            )
            made[key] = Bundle.open(output)
        return made[key]

    return export


@pytest.fixture(scope="session")
def built(exported: Exporter) -> Exporter:
    """Return a function that also builds an engine wide and long enough for every case."""
    ready: set[Path] = set()

    def build(pack: Path, **options: Any) -> Bundle:
        bundle = exported(pack, **options)
        if bundle.root not in ready:
            build_engine(plan_build(bundle.root, "onnxruntime-cpu", _request(pack, bundle)))
            ready.add(bundle.root)
        return bundle

    return build


def _all_but_suppressed(pack: Path, suppress: tuple[int, ...]) -> int:
    """Return how many tokens may be predicted: the references filter the whole vocabulary."""
    config = json.loads((pack / "config.json").read_text())
    mask = config.get("mask_token_id", cases.first_case(pack).mask_id)
    return int(config["vocab_size"]) - len({mask, *suppress})


def _request(pack: Path, bundle: Bundle) -> ProfileRequest:
    found = list(cases.cases_of(pack))
    longest = max(len(row) for case in found for state in case.data["canvases"] for row in state)
    longest = max(longest, *(len(row) for case in found for row in case.data["finals"]))
    widest = max(len(case.data["prompts"]) for case in found)
    guided = 2 if bundle.manifest.head.variant == "guided" else 1
    batch = tuple(sorted({guided, guided * widest}))
    block = bundle.manifest.attention.block_length
    if bundle.manifest.attention.regime == "full":
        return ProfileRequest(batch=batch, block=longest, cache=longest, rows=longest)
    # A whole last block may reach beyond the answer.
    longest = min(longest + block, bundle.manifest.model.max_position_embeddings)
    return ProfileRequest(batch=batch, block=block, cache=longest, prefill=max(longest, block))
