"""The table of recipes in each folder's README, written from the recipes themselves."""

from collections.abc import Sequence
from pathlib import Path

from dlmc.recipes.recipe import Recipe, read_recipe
from dlmc_runtime.manifest import TargetSpec

BEGIN = "<!-- recipes: written by dlmc recipes check --write -->"
END = "<!-- /recipes -->"


def table(recipes: Sequence[Recipe]) -> str:
    """Return a Markdown table, one recipe a row."""
    header = (
        "recipe",
        "checkpoint",
        "weights",
        "sampler",
        "profiles (B x T over C, R rows)",
        "targets",
    )
    rows = [header, ("---",) * len(header), *(_row(recipe) for recipe in recipes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(recipe: Recipe) -> tuple[str, ...]:
    parameters = [f"{name} {value}" for name, value in recipe.sampler.parameters.items()]
    return (
        f"[`{recipe.name}`]({recipe.name}.yaml)",
        f"`{recipe.source}`" if recipe.source else "",
        size(recipe.parameters),
        ", ".join((f"`{recipe.sampler.name}`", *parameters)),
        "; ".join(map(str, recipe.profiles)),
        "; ".join(map(_target, recipe.targets)),
    )


def _target(spec: TargetSpec) -> str:
    quantized = "" if spec.quantization == "none" else f" {spec.quantization}"
    device = f" in {spec.device_memory} GiB" if spec.device_memory else ""
    return f"`{spec.target}` {spec.precision}{quantized}{device}"


def size(count: int | None) -> str:
    """Return a number of weights with three digits, such as ``8.02 B``."""
    if count is None:
        return ""
    for unit, factor in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return str(count)


def updated(folder: Path) -> str:
    """Return the text of a folder's README with a current table."""
    recipes = [read_recipe(path) for path in sorted(folder.glob("*.yaml"))]
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {folder.name}\n"
    block = f"{BEGIN}\n{table(recipes)}\n{END}"
    before, begin, rest = text.partition(BEGIN)
    if not begin:
        return f"{text.rstrip()}\n\n{block}\n"
    return before + block + rest.partition(END)[2]


def is_current(folder: Path) -> bool:
    """Return whether a folder's README holds the table of its recipes."""
    path = folder / "README.md"
    return path.exists() and path.read_text(encoding="utf-8") == updated(folder)
