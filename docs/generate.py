"""Regenerate what the documentation derives from the sources.

    python docs/generate.py schema    docs/manifest.schema.json and docs/engine.schema.json
    python docs/generate.py map       the map of the code in docs/design.md

`tests/test_docs.py` fails where either is out of date.
"""

import ast
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from dlmc_runtime.manifest import EngineRecord, Manifest, Record

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SCHEMAS: dict[str, type[Record]] = {
    "manifest.schema.json": Manifest,
    "engine.schema.json": EngineRecord,
}
MAPPED = ("compiler/dlmc", "runtimes/dlmc_runtime", "recipes/tiny", "benchmarks")
_BEGIN, _END = "<!-- map: make map -->\n", "<!-- end of map -->\n"


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


def with_map(page: str) -> str:
    """Return the design page with its map replaced by the current one."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return f"{before}{_BEGIN}{map_text()}{_END}{after}"


def write_schemas() -> None:
    """Write one schema per record."""
    for name, record in SCHEMAS.items():
        (DOCS / name).write_text(schema_text(record), encoding="utf-8")


def write_map() -> None:
    """Rewrite the map in the design page."""
    page = DOCS / "design.md"
    page.write_text(with_map(page.read_text(encoding="utf-8")), encoding="utf-8")


PRODUCTS: dict[str, Callable[[], None]] = {"schema": write_schemas, "map": write_map}

if __name__ == "__main__":
    for product in sys.argv[1:] or PRODUCTS:
        PRODUCTS[product]()
