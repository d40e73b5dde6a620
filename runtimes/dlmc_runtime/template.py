"""Chat templates: Jinja as Hugging Face renders it, on a short leash.

A template comes with a checkpoint, so it is untrusted code. It runs in Jinja's immutable sandbox
with a budget: so many steps (loop iterations, calls, filters, operators), so many characters in
any value and in the whole text. Loops and concatenations are counted by rewriting the parsed
template, everything else through the sandbox's own hooks.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dlmc_runtime.errors import BundleError, DlmcError

MAX_TEMPLATE_BYTES = 1 << 20
MAX_CHARACTERS = 16 << 20
MAX_STEPS = 1_000_000
_CHARACTERS_A_STEP = 1024
_MAX_PRODUCT = 1 << 28
_WIDTH = re.compile(r"\d{6}|%[^a-zA-Z]*\*|\{[^{}]*\{")
_MAX_EXCERPT = 200

# Their cost is not bounded by what goes in, and no released chat template uses them.
_COSTLY_FILTERS = ("batch", "pprint", "slice", "urlize", "wordwrap")

_HINT = "give the prompt as plain text, or fix the template"


def _raise_exception(message: str) -> NoReturn:
    """Refuse the messages: what templates call when, say, roles do not alternate."""
    raise jinja2.TemplateRuntimeError(message)


def _strftime_now(form: str) -> str:
    """Format the local time, which is what templates that state the date expect."""
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without Jinja's escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's turn for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counted(NodeTransformer):
    """Make loops draw from the budget and ``~`` an ordinary, checked addition of strings."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  (Jinja names visitors so)
        """Wrap what the loop runs over."""
        self.generic_visit(node)
        node.iter = _filter(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        """Turn ``a ~ b ~ c`` into additions."""
        self.generic_visit(node)
        total: nodes.Expr = _filter(node.nodes[0], "string")
        for part in node.nodes[1:]:
            total = nodes.Add(total, _filter(part, "string"))
        return total


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment, where every step is paid for out of `budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=self._paid,
        )
        self.budget = MAX_STEPS
        priced = {name: self._priced(function) for name, function in self.filters.items()}
        self.filters.update(priced, tojson=_tojson, _counted=self._counted)
        del self.globals["lipsum"]  # writes as much as it is asked for
        for name in _COSTLY_FILTERS:
            del self.filters[name]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def _paid(self, value: Any) -> Any:
        """Charge one step for ``value``, and more for a long one: a list costs its elements."""
        length = len(value) if isinstance(value, Sequence) else 0
        if length > MAX_CHARACTERS:
            raise SecurityError(f"it makes a value of more than {MAX_CHARACTERS} characters")
        self.budget -= 1 + (length // _CHARACTERS_A_STEP if isinstance(value, str) else length)
        if self.budget < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        return value

    def _counted(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            self._paid(None)
            yield value

    def _priced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter; the value it is applied to may be a large number, as in a timestamp."""
        value = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def priced(*args: Any, **kwargs: Any) -> Any:
            whole = isinstance(args[value], int)
            _affordable(*args[value + whole :], *kwargs.values())
            if function.__name__ == "do_format":
                _plain_format(args[value])
            result = self._paid(function(*args, **kwargs))
            return self._counted(result) if isinstance(result, Iterator) else result

        return priced

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a global or a method."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _affordable(owner, *args, *kwargs.values())
        return __self._paid(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Take `str.format` only of harmless strings."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _plain_format(value.__self__)
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        if operator in {"*", "**"}:
            if isinstance(left, list | tuple) or isinstance(right, list | tuple):
                # Copies share their elements: a short expression makes a list of endless text.
                raise SecurityError("it repeats a list")
            _affordable(left, right)
        if operator == "%":
            _plain_format(left)
        return self._paid(super().call_binop(context, operator, left, right))


def _affordable(*operands: object) -> None:
    """Refuse an operation whose result could be huge before it is tried.

    No operation on strings and numbers makes more characters than the product of its operands'
    lengths and magnitudes.
    """
    size = 1
    for operand in operands:
        if isinstance(operand, Sequence):
            size *= max(len(operand), 1)
        elif isinstance(operand, int):
            size *= max(abs(operand), 1)
    if size > _MAX_PRODUCT:
        raise SecurityError("it makes a value that could be huge")


def _plain_format(template: object) -> None:
    """Refuse format strings with a width of many digits, or one taken from an argument."""
    if isinstance(template, str) and _WIDTH.search(template):
        raise SecurityError("it formats with a width that could be huge")


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: the Jinja text.
        where: what to call the template in errors.
        variables: values every rendering sees, such as ``bos_token``.

    Raises:
        BundleError: the template is too large or breaks Jinja's syntax.
    """

    def __init__(self, source: str, where: str, variables: Mapping[str, object]) -> None:
        self._where, self._variables = where, dict(variables)
        if len(source) > MAX_TEMPLATE_BYTES:
            raise BundleError(f"{where} is larger than {MAX_TEMPLATE_BYTES} bytes", _HINT)
        self._sandbox = _Sandbox()
        with self._guard():
            self._template = self._sandbox.from_string(source)

    def render(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        """Render a conversation.

        Raises:
            DlmcError: the template refuses the messages, breaks out of its sandbox or budget, or
                fails in any other way.
        """
        names = {"tools": None, "documents": None, **self._variables, **variables}
        names["messages"] = [dict(message) for message in messages]
        self._sandbox.budget = MAX_STEPS
        with self._guard():
            return _bounded(self._template.generate(names))

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


def _bounded(chunks: Iterable[str]) -> str:
    """Join the pieces of a rendering as long as the whole stays small."""
    parts, total = [], 0
    for chunk in chunks:
        parts.append(chunk)
        total += len(chunk)
        if total > MAX_CHARACTERS:
            raise SecurityError(f"it writes more than {MAX_CHARACTERS} characters")
    return "".join(parts)


def _excerpt(message: object) -> str:
    """Return a message as one short line."""
    line = " ".join(str(message).split())
    return line if len(line) <= _MAX_EXCERPT else f"{line[:_MAX_EXCERPT]}…"
