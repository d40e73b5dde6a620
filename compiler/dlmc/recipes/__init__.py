"""Recipes: YAML files that name every choice between a checkpoint and an engine."""

from dlmc.recipes.catalog import find, list_recipes, load
from dlmc.recipes.recipe import Recipe

__all__ = ["Recipe", "find", "list_recipes", "load"]
