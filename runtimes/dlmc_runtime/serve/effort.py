"""``reasoning_effort``: how much work a model puts into an answer."""

from typing import Any

from dlmc_runtime.generate import Generator
from dlmc_runtime.serve.errors import FieldError


def preset(generator: Generator, level: str) -> dict[str, Any]:
    """Return the sampler options that a level stands for; ``name`` where it is another sampler.

    Raises:
        FieldError: this model has no such level.
    """
    del generator
    raise FieldError("reasoning_effort", f"there is no level {level} here", "leave it out")
