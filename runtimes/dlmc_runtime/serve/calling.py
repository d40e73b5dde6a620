"""Calls that must be made: the model's own format of a call as a constraint."""

from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.models import Served
from dlmc_runtime.serve.parsers.formats import Format
from dlmc_runtime.serve.tools import Toolbox


def constraint(served: Served, style: Format, box: Toolbox) -> object:
    """Return the constraint of answers that are a call of one of the tools.

    Raises:
        FieldError: it cannot be enforced.
    """
    del served, style, box
    raise FieldError("tool_choice", "this server enforces no calls", "use auto")
