"""What a recipe may say, field by field."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue, ValidationError

from dlmc.recipes.notation import parse
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile, SamplerSpec, TargetSpec, Tolerance
from dlmc_runtime.record import Count, Record

MAX_RECIPE_BYTES = 256 << 10


class Recipe(Record):
    """All choices for one model.

    Attributes:
        name: the file's name without its suffix.
        description: one line for lists.
        source: a hub id, a checkpoint folder relative to the repository, or None.
        family: how the checkpoint is read.
        parameters: how many weights the network has, as a hint before a download.
        config: ``config.json`` of the checkpoint, as far as the family reads it; enough to export
            the graph or a random checkpoint without the real one.
        generation_config: ``generation_config.json`` likewise.
        candidates: best tokens (K) the graph hands out for each row.
        profiles: the shapes to build.
        sampler: the default sampler.
        max_new_tokens: the default length of an answer.
        tolerances: by output, how far a float32 engine may be from the reference.
        targets: what to build for a target, the first entry of each being its default.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    description: Annotated[str, Field(min_length=1, max_length=120)]
    source: str | None = None
    family: str
    parameters: Count | None = None
    config: dict[str, JsonValue]
    generation_config: dict[str, JsonValue] = Field(default_factory=dict)
    candidates: Count
    profiles: tuple[Profile, ...] = Field(min_length=1)
    sampler: SamplerSpec
    max_new_tokens: Count
    tolerances: dict[str, Tolerance] = Field(default_factory=dict)
    targets: tuple[TargetSpec, ...] = ()


def parse_recipe(text: bytes, where: str) -> Recipe:
    """Parse and check a recipe.

    Raises:
        UsageError: it is no YAML, or a field is wrong; the message names file and field.
    """
    hint = "compare it with one that dlmc recipes show prints"
    if len(text) > MAX_RECIPE_BYTES:
        raise UsageError(f"{where} is larger than {MAX_RECIPE_BYTES} bytes", hint)
    data: Any = parse(text, where)
    try:
        return Recipe.model_validate_json(json.dumps(data, allow_nan=False))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, problem["loc"])) or "the file"
        message = problem["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}: {field}: {message}", hint) from None
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} holds what JSON cannot ({error})", hint) from None


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a file; raises `UsageError` like `parse_recipe`."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_RECIPE_BYTES + 1)
    except OSError as error:
        problem = f"recipe {path} cannot be read ({error.strerror})"
        raise UsageError(problem, "dlmc recipes ls lists those that come with dlmc") from None
    return parse_recipe(text, str(path))
