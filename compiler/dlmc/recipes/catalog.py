"""The recipes that come with dlmc, and how one is found by name."""

import difflib
from pathlib import Path

from dlmc.recipes.recipe import Recipe, read_recipe
from dlmc_runtime.errors import UsageError

_PACKAGE = Path(__file__).parents[1]


def root() -> Path:
    """Return the folder of the recipes: in the package, or of the checkout it is run from."""
    packaged = _PACKAGE / "_recipes"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "recipes"


def list_recipes() -> tuple[str, ...]:
    """Return the names of all recipes, as ``folder/model``, sorted."""
    paths = root().glob("*/*.yaml")
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in paths))


def find(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: a path that ends in ``.yaml``, ``folder/model``, or ``model`` alone.

    Raises:
        UsageError: no recipe has this name, or several do.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    known = list_recipes()
    found = [one for one in known if name in (one, one.split("/")[1])]
    if len(found) == 1:
        return root() / f"{found[0]}.yaml"
    if found:
        raise UsageError(f"several recipes are called {name!r}", f"say {' or '.join(found)}")
    models = {one.split("/")[1]: one for one in known}
    model = name.rpartition("/")[2].lower()
    near = difflib.get_close_matches(model, models, n=3, cutoff=0.3)
    hint = f"nearest: {', '.join(models[model] for model in near)}" if near else ""
    raise UsageError(f"no recipe is called {name!r}", hint or "dlmc recipes ls lists them")


def load(name_or_path: str | Path) -> Recipe:
    """Find, read and check a recipe; raises `UsageError` like `find` and `read_recipe`."""
    return read_recipe(find(str(name_or_path)))
