"""Regenerate what the documentation derives from the sources.

    python docs/generate.py schema    docs/manifest.schema.json and docs/engine.schema.json
    python docs/generate.py map       the map of the code in docs/design.md
    python docs/generate.py samplers  the table of samplers in docs/samplers.md
    python docs/generate.py families  the tables of families in docs/families.md

`tests/test_docs.py` fails where one of them is out of date.
"""

import ast
import inspect
import json
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from dlmc.families import FAMILIES, Family, FamilySpec, Overrides
from dlmc.recipes import Recipe, list_recipes, load
from dlmc_runtime import samplers
from dlmc_runtime.engine_record import EngineRecord
from dlmc_runtime.legal import CACHES, regimes_of, samplers_for
from dlmc_runtime.manifest import Manifest, Regime
from dlmc_runtime.record import Record
from dlmc_runtime.samplers.base import Sampler
from dlmc_runtime.samplers.config import SamplerConfig

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCHEMAS: dict[str, type[Record]] = {
    "manifest.schema.json": Manifest,
    "engine.schema.json": EngineRecord,
}
MAPPED = ("compiler/dlmc", "runtimes/dlmc_runtime", "recipes/tiny", "benchmarks")


def schema_text(record: type[Record]) -> str:
    """Return the JSON Schema (draft 2020-12) of a record."""
    schema = record.model_json_schema()
    schema["required"] = ["schema_version", *schema["required"]]  # the default is for writers
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def sources() -> Iterator[Path]:
    """Yield the mapped source files, folder by folder."""
    for folder in MAPPED:
        yield from sorted((ROOT / folder).rglob("*.py"), key=lambda path: (path.parent, path.name))


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, empty where there is none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n\n", 1)[0].replace("\n", " ").split(". ", 1)[0].rstrip(".")


def map_text() -> str:
    """Return the map: one heading per folder, one line per file."""
    lines: list[str] = []
    folder: Path | None = None
    for path in sources():
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"**{folder.relative_to(ROOT).as_posix()}/**", ""]
        if text := summary(path):
            lines.append(f"- `{path.name}`: {text}")
    return "\n".join(lines[1:]) + "\n"


def options_text(kind: type[Sampler]) -> str:
    """Return the options that a sampler heeds, with the defaults of those that have one."""
    found = []
    for field in fields(SamplerConfig):
        if field.name not in kind.heeds:
            continue
        default = kind.defaults.get(field.name, field.default)
        if field.name in ("schedule", "order"):
            default = getattr(kind, field.name, default)
        known = default not in (None, ())
        found.append(f"`{field.name}` {default}" if known else f"`{field.name}`")
    return ", ".join(found) or "none"


def samplers_text() -> str:
    """Return the table of samplers."""
    lines = [
        "| sampler | what it does | options, with their defaults | attention | from |",
        "|---|---|---|---|---|",
    ]
    for name in samplers.SAMPLERS:
        kind, regimes = samplers.find(name), regimes_of(name)
        does = (inspect.getdoc(kind) or "").split("\n", 1)[0].replace("``", "`")
        where = "any" if len(regimes) == len(regimes_of("random")) else ", ".join(regimes)
        lines.append(f"| `{name}` | {does} | {options_text(kind)} | {where} | {kind.source} |")
    return "\n".join(lines) + "\n"


@cache
def tests_of(path: str) -> dict[str, Any]:
    """Return what a module of the tests defines, which is what they run."""
    return runpy.run_path(str(ROOT / "tests" / path))


def released(family: Family) -> list[tuple[str, Recipe, FamilySpec]]:
    """Return the recipes of a family's released checkpoints: name, recipe, and what it says."""
    recipes = [(name, load(name)) for name in list_recipes() if not name.startswith("tiny/")]
    return [
        (name, recipe, family.read(recipe.config, recipe.generation_config, Overrides()))
        for name, recipe in recipes
        if recipe.family == family.name
    ]


def rows_text(header: tuple[str, ...], row: Callable[[Family], tuple[str, ...]]) -> str:
    """Return a table with one family a row."""
    rows = [header, ("---",) * len(header)]
    rows += [(f"`{family.name}`", *row(family)) for family in FAMILIES]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def several(values: Iterable[object]) -> str:
    """Return what some recipes say, each thing once."""
    return ", ".join(dict.fromkeys(map(str, values)))


def checkpoints_row(family: Family) -> tuple[str, ...]:
    """Return which checkpoints a family reads."""
    module = Path(sys.modules[family.read.__module__].__file__ or "")
    recipes = released(family)
    folders = dict.fromkeys(name.partition("/")[0] for name, _, _ in recipes)
    sources = ", ".join(f"`{recipe.source}`" for _, recipe, _ in recipes)
    denoisers = [spec.denoiser for _, _, spec in recipes]
    experts = several(f"{one.experts_per_token} of {one.num_experts}" for one in denoisers)
    return (
        summary(module).partition(": ")[2],
        experts if denoisers[0].num_experts else "",
        ", ".join(f"`{name}`" for name in family.architectures),
        sources,
        ", ".join(f"[{len(recipes)} in {one}](../recipes/{one}/README.md)" for one in folders),
    )


def cache_text(regime: Regime) -> str:
    """Return the caches of an attention regime."""
    if regime == "full":
        return ", ".join(f"`{name}`" for name in CACHES[regime]) + "; `none` is exact"
    named = "".join(f"; `{name}` for sub-blocks" for name in CACHES[regime])
    return f"exact{named}"


def sampler_text(family: Family) -> str:
    """Return a family's own samplers, how many there are, and those that few families have."""
    recipes = released(family)
    own = several(f"`{recipe.sampler.name}`" for _, recipe, _ in recipes)
    found = {name for _, _, spec in recipes for name in samplers_for(spec.regime, spec.tokens)}
    every = [name for name in samplers.SAMPLERS if name in found]
    special = [name for name in every if len(regimes_of(name)) == 1]
    if len(every) == 1:
        return f"{own} alone"
    also = ", with " + " and ".join(f"`{name}`" for name in special) if special else ""
    return f"{own}; [{len(every)} in all](samplers.md){also}"


def decoding_row(family: Family) -> tuple[str, ...]:
    """Return how a family's checkpoints are decoded."""
    recipes = released(family)
    specs = [spec for _, _, spec in recipes]
    grows = [name.partition("/")[2] for name, _, spec in recipes if spec.expand_id is not None]
    infill = "yes" if specs[0].regime == "full" else "no"
    whole = [spec.block_length == spec.max_position_embeddings for spec in specs]
    lengths = sorted({spec.block_length for spec in specs})
    return (
        several(spec.regime for spec in specs),
        several("random tokens" if spec.mask_id is None else "masks" for spec in specs),
        "whole answer" if all(whole) else several(lengths),
        several(spec.aligned_to for spec in specs),
        several(spec.shift for spec in specs),
        several("yes" if spec.seeded else "no" for spec in specs),
        cache_text(specs[0].regime),
        sampler_text(family),
        infill + "".join(f", growing with `{name}`" for name in grows),
        "yes" if family.takes_adapter else "no",
    )


def parity_row(family: Family) -> tuple[str, ...]:
    """Return what the tests compare a family with."""
    module, found = tests_of("doubles/networks.py"), []
    variants = [one for one in module["NETWORKS"].values() if one.family == family.name]
    for name in ("adapter", "guided head"):
        has = [one.adapter if name == "adapter" else one.variant == "guided" for one in variants]
        found += [name] if any(has) else []
    also = f", with {', '.join(found)} too" if found else ""
    targets = ", ".join(f"`{name}`" for name in module["TARGETS"])
    family_of = tests_of("golden/cases.py")["family"]
    folders = sorted(path.parent for path in (ROOT / "tests" / "goldens").glob("*/config.json"))
    packs = [path.name for path in folders if family_of(path) == family.name]
    links = ", ".join(f"[{name}](../tests/goldens/{name}/README.md)" for name in packs)
    return (
        f"{targets}{also}" if variants else "none",
        f"`{module['AHEAD']}`" if variants else "none",
        links or "no recorded pack; graph compared with dlmc's own network in torch",
    )


def families_text() -> str:
    """Return the three tables of families."""
    checkpoints = (
        "family",
        "network",
        "experts of a token",
        "`architectures`",
        "released checkpoints",
        "recipes",
    )
    decoding = (
        "family",
        "attention",
        "begins as",
        "block",
        "counted from",
        "shift",
        "seeded",
        "cache",
        "sampler",
        "infill",
        "adapter",
    )
    parity = ("family", "run against torch", "built ahead of time", "recorded reference")
    return "\n".join(
        (
            "### Checkpoints\n",
            rows_text(checkpoints, checkpoints_row),
            "### Decoding\n",
            rows_text(decoding, decoding_row),
            "### What the tests run\n",
            rows_text(parity, parity_row),
        )
    )


def replaced(page: str, name: str, text: str) -> str:
    """Return a page in which the part called ``name`` is ``text``."""
    begin, end = f"<!-- {name}: make {name} -->\n", f"<!-- end of {name} -->\n"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}{text}{end}{after}"


def with_map(page: str) -> str:
    """Return the design page with its map replaced by the current one."""
    return replaced(page, "map", map_text())


def with_samplers(page: str) -> str:
    """Return the page on samplers with its table replaced by the current one."""
    return replaced(page, "samplers", samplers_text())


def with_families(page: str) -> str:
    """Return the page on families with its tables replaced by the current ones."""
    return replaced(page, "families", families_text())


def write_schemas() -> None:
    """Write one schema per record."""
    for name, record in SCHEMAS.items():
        (DOCS / name).write_text(schema_text(record), encoding="utf-8")


def write_map() -> None:
    """Rewrite the map in the design page."""
    page = DOCS / "design.md"
    page.write_text(with_map(page.read_text(encoding="utf-8")), encoding="utf-8")


def write_samplers() -> None:
    """Rewrite the table in the page on samplers."""
    page = DOCS / "samplers.md"
    page.write_text(with_samplers(page.read_text(encoding="utf-8")), encoding="utf-8")


def write_families() -> None:
    """Rewrite the tables in the page on families."""
    page = DOCS / "families.md"
    page.write_text(with_families(page.read_text(encoding="utf-8")), encoding="utf-8")


PRODUCTS: dict[str, Callable[[], None]] = {
    "schema": write_schemas,
    "map": write_map,
    "samplers": write_samplers,
    "families": write_families,
}

if __name__ == "__main__":
    for product in sys.argv[1:] or PRODUCTS:
        PRODUCTS[product]()
