"""Regenerate what the documentation derives from the sources.

    python docs/generate.py schema    docs/manifest.schema.json and docs/engine.schema.json
    python docs/generate.py map       the map of the code in docs/design.md
    python docs/generate.py samplers  the table of samplers in docs/samplers.md

`tests/test_docs.py` fails where one of them is out of date.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from dlmc_runtime import samplers
from dlmc_runtime.legal import regimes_of
from dlmc_runtime.manifest import EngineRecord, Manifest, Record
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
        if field.name == "schedule":
            default = getattr(kind, "schedule", default)
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


PRODUCTS: dict[str, Callable[[], None]] = {
    "schema": write_schemas,
    "map": write_map,
    "samplers": write_samplers,
}

if __name__ == "__main__":
    for product in sys.argv[1:] or PRODUCTS:
        PRODUCTS[product]()
