"""Bundles of the golden packs, exported and built once a session."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    return int(config["vocab_size"]) - len({config["mask_token_id"], *suppress})


def _request(pack: Path, bundle: Bundle) -> ProfileRequest:
    cases = json.loads((pack / "samplers.json").read_text())["cases"]
    longest = max(len(row) for case in cases for state in case["canvases"] for row in state)
    widest = max(len(case["prompts"]) for case in cases)
    batch = tuple(sorted({1, widest}))
    if bundle.manifest.attention.regime == "full":
        return ProfileRequest(batch=batch, block=longest, rows=longest)
    block = bundle.manifest.attention.block_length
    return ProfileRequest(batch=batch, block=block, cache=longest, prefill=max(longest, block))
