"""`dlmc inspect`: a bundle or an engine at a glance."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dlmc.cli.console import AsJson, say, say_json, size, table
from dlmc.recipes.readme import size as weights
from dlmc.targets.build import memory
from dlmc_runtime import legal, preflight
from dlmc_runtime.bundle import MANIFEST, Bundle
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.engines import ENGINES
from dlmc_runtime.errors import BundleError, DlmcError
from dlmc_runtime.manifest import Manifest, Profile

_HASH_DIGITS = 12
_FLOAT_BYTES = 4


def command(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A bundle, or an engine inside one.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its hash.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a bundle or an engine is, and if it runs here."""
    root, target = locate(path)
    bundle = Bundle.open(root, hashes=verify)
    report = describe(bundle, None if target is None else [target], verified=verify)
    if as_json:
        say_json(report)
    else:
        say("\n\n".join(_section(title, part) for title, part in readable(report).items()))


def locate(path: Path) -> tuple[Path, str | None]:
    """Return a bundle's folder, and the target where ``path`` is one of its engines.

    Raises:
        BundleError: it is neither.
    """
    folder = path.parent if path.name in {MANIFEST, "engine.json"} else path
    if (folder / MANIFEST).exists():
        return folder, None
    if (folder / "engine.json").exists() and (folder / "../.." / MANIFEST).exists():
        engine = folder.resolve()
        return engine.parents[1], engine.name
    problem = "is no bundle and no engine" if path.exists() else "does not exist"
    raise BundleError(f"{path} {problem}", "make a bundle with dlmc export")


def describe(bundle: Bundle, targets: Sequence[str] | None, *, verified: bool) -> dict[str, Any]:
    """Return what ``--json`` prints; sizes are in bytes.

    Args:
        bundle: what to describe.
        targets: names of the engines to describe; None means all that were built.
        verified: whether the hashes of all files have been compared.
    """
    manifest = bundle.manifest
    shown = bundle.engine_names() if targets is None else targets
    return {
        "path": str(bundle.root),
        "family": manifest.family,
        "architecture": manifest.architecture,
        "regime": manifest.attention.regime,
        "block_length": manifest.attention.block_length,
        "attention": manifest.attention.model_dump(),
        "shift": manifest.shift,
        "caches": list(legal.CACHES[manifest.attention.regime]),
        "samplers": legal.samplers_for(manifest.attention.regime, manifest.tokens),
        "infill": _infill(manifest),
        "precision": manifest.precision,
        "model": manifest.model.model_dump(),
        "tokens": manifest.tokens.model_dump(mode="json"),
        "head": manifest.head.model_dump(),
        "sampler": manifest.sampler.model_dump(mode="json"),
        "max_new_tokens": manifest.max_new_tokens,
        "text": None if manifest.text is None else manifest.text.model_dump(),
        "provenance": manifest.provenance.model_dump(),
        "inputs": [spec.model_dump(mode="json") for spec in manifest.inputs],
        "outputs": [spec.model_dump(mode="json") for spec in manifest.outputs],
        "weight_memory": manifest.model.parameters * _FLOAT_BYTES if manifest.weights else None,
        "profiles": [_profile(bundle, profile) for profile in manifest.profiles],
        "files": {name: record.model_dump() for name, record in manifest.files.items()},
        "verified": verified,
        "engines": {target: _engine(bundle, target) for target in sorted(shown)},
    }


def _infill(manifest: Manifest) -> str:
    """Say whether a model fills spans: ``no``, ``yes``, or ``growing`` where they may grow."""
    if manifest.attention.regime != "full":
        return "no"
    return "yes" if manifest.tokens.expand is None else "growing"


def _profile(bundle: Bundle, profile: Profile) -> dict[str, Any]:
    return {**profile.model_dump(), "memory": memory(bundle, profile)}


def _engine(bundle: Bundle, target: str) -> dict[str, Any]:
    """Describe the engine for a target, or say what is in the way of running it."""
    record: EngineRecord | None = None
    try:
        bundle.require_weights()
        record = bundle.engine(target)
        obstacle = _obstacle(record)
    except DlmcError as error:
        obstacle = str(error)
    return {
        "runs_here": obstacle is None,
        "obstacle": obstacle,
        "record": None if record is None else record.model_dump(mode="json"),
    }


def _obstacle(record: EngineRecord) -> str | None:
    if record.target not in ENGINES:
        return f"this version of dlmc does not run {record.target}"
    found = preflight.obstacle(record)
    return None if found is None else ": ".join(found)


def readable(report: Mapping[str, Any]) -> dict[str, list[list[object]]]:
    """Return the tables of a report, by title."""
    model, tokens = report["model"], report["tokens"]
    heads = f"{model['num_attention_heads']}/{model['num_key_value_heads']}"
    sampler = [f"{name} {value}" for name, value in report["sampler"]["parameters"].items()]
    memory_of_weights = report["weight_memory"]
    overview: list[list[object]] = [
        ["family", f"{report['family']} ({report['architecture']})"],
        ["regime", f"{report['regime']}, blocks of {report['block_length']}"],
        ["shift", f"{report['shift']}{', seeded' if report['attention']['seeded'] else ''}"],
        ["caches by name", ", ".join(report["caches"]) or "none: its own is exact"],
        ["fills spans", report["infill"]],
        ["head", f"{report['head']['variant']}, {report['head']['candidates']} candidates"],
        ["precision", report["precision"]],
        ["parameters", f"{weights(model['parameters'])}, {_bytes(memory_of_weights)} in memory"],
        ["network", f"{model['num_hidden_layers']} layers of {model['hidden_size']}, heads {heads} "
         f"of {model['head_dim']}, vocabulary {model['vocab_size']}"],
        ["tokens", ", ".join(f"{name} {value}" for name, value in tokens.items()
                             if value is not None)],
        ["sampler", ", ".join([report["sampler"]["name"], *sampler])],
        ["other samplers", len(report["samplers"]) - 1],
        ["chat", "yes" if (report["text"] or {}).get("chat_template") else "no template"],
        ["source", report["provenance"]["source"]],
    ]  # fmt: skip
    return {
        str(report["path"]): overview,
        "inputs": [_tensor(spec) for spec in _collapsed(report["inputs"])],
        "outputs": [_tensor(spec) for spec in _collapsed(report["outputs"])],
        "profiles": [_profile_row(profile) for profile in report["profiles"]],
        f"files, {'hashes match' if report['verified'] else 'hashes not compared (--verify)'}": [
            [name, _bytes(record["size"]), record["sha256"][:_HASH_DIGITS]]
            for name, record in report["files"].items()
        ],
        "engines": [
            [target, engine["obstacle"] or "runs here"]
            for target, engine in report["engines"].items()
        ]
        or [["none", f"run dlmc build {report['path']}"]],
    }


def _section(title: str, rows: Sequence[Sequence[object]]) -> str:
    return f"{title}\n" + "\n".join(f"  {line}" for line in table(rows).splitlines())


def _bytes(count: int | None) -> str:
    return "no weights" if count is None else size(count)


def _tensor(spec: Mapping[str, Any]) -> list[object]:
    return [spec["name"], spec["dtype"], f"[{', '.join(map(str, spec['shape']))}]"]


def _collapsed(specs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Show the caches of all layers as one line each for keys and values."""
    found: dict[str, Mapping[str, Any]] = {}
    for spec in specs:
        name = ".".join("*" if part.isdigit() else part for part in spec["name"].split("."))
        found.setdefault(name, {**spec, "name": name})
    return list(found.values())


def _profile_row(profile: Mapping[str, Any]) -> list[object]:
    shape = f"batch {profile['batch']}, block {profile['block']}, cache {profile['cache']}"
    parts = [f"{name} {size(count)}" for name, count in profile["memory"].items()]
    return [f"{shape}, rows {profile['rows']}", ", ".join(parts)]
