"""`dlmc recipes`: list, show, copy and check."""

import re
from pathlib import Path
from typing import Annotated

import typer

from dlmc.cli.console import AsJson, say, say_json, table
from dlmc.recipes import catalog, readme
from dlmc.recipes.check import check_recipe
from dlmc.recipes.recipe import read_recipe
from dlmc_runtime.errors import UsageError, ValidationError

app = typer.Typer(
    name="recipes",
    help="List, show, copy and check recipes.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in catalog.list_recipes() if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="folder/model, model, or a YAML file.", autocompletion=_complete
    ),
]


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("ls")
def list_all(as_json: AsJson = False) -> None:
    """List the recipes that come with dlmc."""
    recipes = {name: catalog.load(name) for name in catalog.list_recipes()}
    if as_json:
        say_json(
            [
                {
                    "name": name,
                    **recipe.model_dump(include={"description", "family", "source", "parameters"}),
                }
                for name, recipe in recipes.items()
            ]
        )
        return
    rows = [
        (name, readme.size(recipe.parameters), recipe.description)
        for name, recipe in recipes.items()
    ]
    say(table(rows, ("recipe", "weights", "description")))


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Print a recipe."""
    path = catalog.find(name)
    recipe = read_recipe(path)
    if as_json:
        say_json(recipe.model_dump(mode="json"))
    else:
        say(path.read_text(encoding="utf-8").rstrip("\n"))


@app.command()
def cp(
    name: Name,
    destination: Annotated[
        Path,
        typer.Argument(metavar="DESTINATION", help="A folder, or a file that ends in .yaml."),
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Copy a recipe, to be edited and used by its path."""
    source = catalog.find(name)
    read_recipe(source)
    path = destination / source.name if destination.is_dir() else destination
    if path.suffix != ".yaml":
        raise UsageError(f"{path} is no folder and does not end in .yaml", "give one of them")
    text = source.read_text(encoding="utf-8")
    text = re.sub(r"^name: .*$", f"name: {path.stem}", text, count=1, flags=re.MULTILINE)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists", "choose another name or give --force") from None
    say(str(path))


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="By default all.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Bring the tables in the READMEs up to date.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check recipes against their families.

    Without arguments: all recipes, and the tables in the READMEs of their folders.
    """
    found = {name: check_recipe(catalog.find(name)) for name in names or catalog.list_recipes()}
    if not names:
        found |= _check_tables(write=write)
    if as_json:
        say_json(found)
    else:
        rows = [(name, problem) for name, all_of in found.items() for problem in all_of or ["ok"]]
        say(table(rows))
    broken = [name for name, problems in found.items() if problems]
    if broken:
        raise ValidationError(f"{len(broken)} of {len(found)} have problems", "correct them")


def _check_tables(*, write: bool) -> dict[str, list[str]]:
    folders = sorted({catalog.find(name).parent for name in catalog.list_recipes()})
    for folder in folders if write else ():
        (folder / "README.md").write_text(readme.updated(folder), encoding="utf-8")
    stale = "the table is not current: dlmc recipes check --write"
    return {
        f"{folder.name}/README.md": [] if readme.is_current(folder) else [stale]
        for folder in folders
    }
