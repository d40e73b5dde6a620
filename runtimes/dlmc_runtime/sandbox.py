"""Where chat templates run: Hugging Face's Jinja environment, with a budget.

A template comes with a checkpoint, so it is untrusted code. It runs in Jinja's immutable sandbox
with a budget: so many steps (loop iterations, calls, filters, operators), so many characters in
any value. Who reads a value through pays for all that is in it, as often as it is in there: a short
loop makes a list that holds another a million times. Loops, concatenations, comparisons and slices
are counted by rewriting the parsed template, everything else through the sandbox's own hooks.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARACTERS = 16 << 20
MAX_STEPS = 1_000_000
_CHARACTERS_A_STEP = 1024
_MAX_PRODUCT = 1 << 28
_MAX_BITS = 1 << 16
_MAX_INDENT = 64
_WIDTH = re.compile(r"\d{6}|%[^a-zA-Z]*\*|\{[^{}]*\{")

# Their cost is not bounded by what goes in, and no released chat template uses them.
_COSTLY_FILTERS = ("batch", "pprint", "slice", "urlize", "wordwrap")
# These hand elements on without looking into them; the first few one after the other.
_LAZY_FILTERS = {"map", "reject", "rejectattr", "select", "selectattr"}
_SHALLOW_FILTERS = _LAZY_FILTERS | {
    *("attr", "count", "d", "default", "first", "items", "last", "length", "list", "random"),
    "reverse",
}
_COMPARING_TESTS = (
    *("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ne", "lt", "lessthan", "le", "gt"),
    *("greaterthan", "ge", "in"),
)


def _raise_exception(message: str) -> NoReturn:
    """Refuse the messages: what templates call when, say, roles do not alternate."""
    raise jinja2.TemplateRuntimeError(message)


def _strftime_now(form: str) -> str:
    """Format the local time, which is what templates that state the date expect."""
    return datetime.now().strftime(form)


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's turn for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body of the tag; what it sets is unknown outside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Counted(NodeTransformer):
    """Make loops, comparisons and slices draw from the budget, and ``~`` a checked addition."""

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

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        """Wrap both sides; looking for a key does not read a mapping through."""
        self.generic_visit(node)
        node.expr = _filter(node.expr, "_weighed")
        for operand in node.ops:
            searched = operand.op in {"in", "notin"}
            operand.expr = _filter(operand.expr, "_searched" if searched else "_weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """Wrap slices."""
        self.generic_visit(node)
        return _filter(node, "_paid") if isinstance(node.arg, nodes.Slice) else node


def _filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment, where every step is paid for out of `budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=self._shown,
        )
        self.budget = MAX_STEPS
        for name in _COSTLY_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = self._priced(name, function)
        for name in _COMPARING_TESTS:
            test = cast("Callable[..., Any]", self.tests[name])
            self.tests[name] = self._comparing(test)
        self.filters.update(
            tojson=self._tojson,
            _counted=self._counted,
            _paid=self._paid,
            _searched=self._searched,
            _weighed=self._weighed,
        )
        del self.globals["lipsum"]  # writes as much as it is asked for
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def _spend(self, steps: int) -> None:
        self.budget -= steps
        if self.budget < 0:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")

    def _paid(self, value: Any) -> Any:
        """Charge one step for ``value``, and more for a long one: a list costs its elements."""
        if isinstance(value, str):
            if len(value) > MAX_CHARACTERS:
                raise SecurityError(f"it makes a value of more than {MAX_CHARACTERS} characters")
            self._spend(1 + len(value) // _CHARACTERS_A_STEP)
        else:  # the numbers of a range are charged for where something reads them
            many = isinstance(value, Sequence | Mapping) and not isinstance(value, range)
            self._spend(1 + (len(value) if many else 0))
        return value

    def _weighed(self, value: Any) -> Any:
        """Charge for all that is in ``value``, as often as it is in there."""
        characters, pending = 0, [value]
        while pending:
            one = pending.pop()
            if isinstance(one, str):
                characters += len(one)
                self._spend(len(one) // _CHARACTERS_A_STEP)
            elif isinstance(one, Collection):
                self._spend(len(one))
                pending.extend(one)
                if isinstance(one, Mapping):
                    pending.extend(one.values())
            if characters > MAX_CHARACTERS:
                raise SecurityError(f"it reads a value of more than {MAX_CHARACTERS} characters")
        return value

    def _searched(self, value: Any) -> Any:
        return value if isinstance(value, Mapping) else self._weighed(value)

    def _shown(self, value: Any) -> Any:
        """Charge for writing ``value``."""
        return self._paid(value) if isinstance(value, str) else self._weighed(value)

    def _counted(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            self._spend(1)
            yield value

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates give them by position)
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,  # noqa: FBT001, FBT002
    ) -> str:
        """Write JSON as Hugging Face does, without Jinja's escapes for HTML."""
        if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_INDENT:
            raise SecurityError(f"it indents JSON by more than {_MAX_INDENT}")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return str(self._paid(bounded(map(str, self._counted(encoder.iterencode(value))))))

    def _priced(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter; the value it is applied to may be a large number, as in a timestamp."""
        value = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def priced(*args: Any, **kwargs: Any) -> Any:
            before, subject, others = args[:value], args[value], args[value + 1 :]
            if name in _LAZY_FILTERS:
                subject = self._counted(subject)
            elif name not in _SHALLOW_FILTERS:
                if isinstance(subject, Iterator):
                    subject = list(subject)
                for one in (subject, *others, *kwargs.values()):
                    self._weighed(one)
                _affordable(1 if isinstance(subject, int) else subject, *others, *kwargs.values())
            if name == "format":
                _plain_format(subject)
            result = self._paid(function(*before, subject, *others, **kwargs))
            return self._counted(result) if isinstance(result, Iterator) else result

        return priced

    def _comparing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a test that reads its operands through."""

        @wraps(function)
        def comparing(*operands: Any) -> Any:
            for operand in operands:
                self._searched(operand)
            return function(*operands)

        return comparing

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call a macro, a global or a method."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str | list | tuple):
            for one in (owner, *args, *kwargs.values()):
                __self._weighed(one)
        if isinstance(owner, str):
            _affordable(owner, *args, *kwargs.values())
        if isinstance(__obj, LoopContext):  # the next level of a recursive loop
            args = (__self._counted(args[0]), *args[1:]) if args else args
        return __self._paid(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Take `str.format` only of harmless strings."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        _plain_format(value.__self__)

        def weighed(*args: Any, **kwargs: Any) -> str:
            for one in (*args, *kwargs.values()):
                self._weighed(one)
            return wrapped(*args, **kwargs)

        return weighed

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator."""
        if operator in {"*", "**"}:
            if isinstance(left, list | tuple) or isinstance(right, list | tuple):
                # Copies share their elements: a short expression makes a list of endless text.
                raise SecurityError("it repeats a list")
            _affordable(left, right)
        if operator == "**" and _bits(left, right) > _MAX_BITS:
            raise SecurityError("it makes a value that could be huge")
        if operator == "%":
            _plain_format(left)
            self._weighed(right)
        return self._paid(super().call_binop(context, operator, left, right))


def bounded(chunks: Iterable[str]) -> str:
    """Join the pieces of a text as long as the whole stays small.

    Raises:
        SecurityError: it does not.
    """
    parts, total = [], 0
    for chunk in chunks:
        parts.append(chunk)
        total += len(chunk)
        if total > MAX_CHARACTERS:
            raise SecurityError(f"it writes more than {MAX_CHARACTERS} characters")
    return "".join(parts)


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


def _bits(base: object, exponent: object) -> int:
    """Return about how long a power of whole numbers is."""
    if not isinstance(base, int) or not isinstance(exponent, int):
        return 0
    return base.bit_length() * exponent


def _plain_format(template: object) -> None:
    """Refuse format strings with a width of many digits, or one taken from an argument."""
    if isinstance(template, str) and _WIDTH.search(template):
        raise SecurityError("it formats with a width that could be huge")
