"""``<slot name=… max=…/>``: texts with named gaps."""

from dataclasses import dataclass

from dlmc_runtime.events import Result
from dlmc_runtime.row import Request
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.fields import Generation
from dlmc_runtime.serve.models import Served


@dataclass(frozen=True)
class Filling:
    """A template that became requests, one an answer.

    Attributes:
        requests: one for each seed.
        names: of its slots, in order.
    """

    requests: list[Request]
    names: tuple[str, ...]

    def slots(self, result: Result) -> dict[str, str]:
        """Return what an answer put into each slot."""
        return dict(zip(self.names, result.spans, strict=True))


def fill(served: Served, template: str, body: Generation) -> Filling:
    """Return the requests that fill a template.

    Raises:
        FieldError: the template is wrong, or the model cannot fill it.
    """
    del served, template, body
    raise FieldError("template", "templates are not supported here", "give a prompt")
