"""Chat templates: Jinja as Hugging Face renders it, on a short leash."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError

from dlmc_runtime import sandbox
from dlmc_runtime.errors import BundleError, DlmcError

MAX_TEMPLATE_BYTES = 1 << 20
_MAX_EXCERPT = 200

_HINT = "give the prompt as plain text, or fix the template"


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        where: what to call the template in errors.
        variables: values every rendering sees, such as ``bos_token``.

    Attributes:
        source: the Jinja text.
        reads: the names of variables that the template looks at.

    Raises:
        BundleError: the template is too large or breaks Jinja's syntax.
    """

    def __init__(self, source: str, where: str, variables: Mapping[str, object]) -> None:
        self._where, self._variables = where, dict(variables)
        self.source = source
        if len(source) > MAX_TEMPLATE_BYTES:
            raise BundleError(f"{where} is larger than {MAX_TEMPLATE_BYTES} bytes", _HINT)
        self._sandbox = sandbox.Sandbox()
        with self._guard():
            self._template = self._sandbox.from_string(source)
            undeclared = meta.find_undeclared_variables(self._sandbox.parse(source))
        self.reads = frozenset(undeclared) - self._sandbox.globals.keys()

    def render(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        """Render a conversation.

        Raises:
            DlmcError: the template refuses the messages, breaks out of its sandbox or budget, or
                fails in any other way.
        """
        names = {"tools": None, "documents": None, **self._variables, **variables}
        names["messages"] = [dict(message) for message in messages]
        self._sandbox.budget = sandbox.MAX_STEPS
        with self._guard():
            return sandbox.bounded(self._template.generate(names))

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn whatever a hostile template can raise into one sentence."""
        try:
            yield
        except jinja2.TemplateSyntaxError as error:
            problem = f"{self._where} line {error.lineno}: {_excerpt(error)}"
            raise BundleError(problem, _HINT) from None
        except SecurityError as error:
            problem = f"{self._where} is not allowed to run: {_excerpt(error)}"
            raise DlmcError(problem, _HINT) from None
        except jinja2.TemplateRuntimeError as error:
            problem = f"{self._where} refuses the messages: {_excerpt(error)}"
            raise DlmcError(problem, _HINT) from None
        except RecursionError:
            raise DlmcError(f"{self._where} calls itself without end", _HINT) from None
        except Exception as error:  # noqa: BLE001  (a template can make any operation fail)
            problem = f"{self._where} fails: {_excerpt(error) or type(error).__name__}"
            raise DlmcError(problem, _HINT) from None


def _excerpt(message: object) -> str:
    """Return a message as one short line."""
    line = " ".join(str(message).split())
    return line if len(line) <= _MAX_EXCERPT else f"{line[:_MAX_EXCERPT]}…"
