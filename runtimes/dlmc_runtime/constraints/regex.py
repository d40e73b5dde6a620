r"""Regular expressions as people write them, and the same for the text of a JSON string.

The dialect is what ECMAScript's, Python's and Rust's expressions agree on: characters, classes,
``\d \w \s`` and their complements, groups, alternatives, quantifiers, and anchors at the ends.
Where the three differ the narrowest reading counts: ``\d``, ``\w`` and ``\s`` are ASCII, and so
are their complements; ``.`` is no line terminator.
"""

from dataclasses import dataclass

from dlmc_runtime.constraints.characters import (
    ASCII,
    DIGITS,
    EVERY,
    LINE_ENDS,
    SPACES,
    WORDS,
    Characters,
)
from dlmc_runtime.errors import RequestError

MAX_LENGTH = 10_000
_MAX_REPEAT, _MAX_DEPTH = 10_000, 64

_CLASSES = {
    "d": DIGITS,
    "w": WORDS,
    "s": SPACES,
    "D": ASCII - DIGITS,
    "W": ASCII - WORDS,
    "S": ASCII - SPACES,
}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_DOT = EVERY - LINE_ENDS

_MUST_ESCAPE = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\f": "f", "\b": "b"}
_PLAIN = EVERY - Characters.of('"\\', (0, 0x1F))


@dataclass(frozen=True)
class Sequence:
    """One after another."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Repeat:
    """The same several times, without end where ``most`` is None."""

    part: "Node"
    least: int
    most: int | None


Node = Characters | Sequence | Choice | Repeat


@dataclass(frozen=True)
class Branch:
    """An alternative of the whole, and whether it must begin and end where the text does."""

    node: Node
    begins: bool
    ends: bool


def whole(pattern: str) -> str:
    """Return a Rust expression for the texts that ``pattern`` matches from end to end.

    Raises:
        RequestError: the expression is none, or outside the dialect.
    """
    return "|".join(_written(branch.node) for branch in parse(pattern))


def inside_json(pattern: str) -> str:
    """Return a Rust expression for what stands between the quotes of a JSON string that matches.

    As JSON Schema has it, a match may lie anywhere in the string unless anchors say otherwise.

    Raises:
        RequestError: as `whole`.
    """
    anything = f"(?:{json_character()})*"
    found = [
        ("" if branch.begins else anything)
        + f"(?:{_written(branch.node, json=True)})"
        + ("" if branch.ends else anything)
        for branch in parse(pattern)
    ]
    return "|".join(found)


def json_character(characters: Characters = EVERY) -> str:
    """Return a Rust expression for one character of a JSON string, escaped where it must be.

    Control characters without an escape of one letter do not occur.
    """
    plain = (characters & _PLAIN).pattern()
    escaped = "".join(sorted(letter for one, letter in _MUST_ESCAPE.items() if one in characters))
    if not escaped:
        return plain
    letters = Characters.of(escaped).pattern()
    return rf"{plain}|\\{letters}" if characters & _PLAIN else rf"\\{letters}"


def _written(node: Node, *, json: bool = False) -> str:
    if isinstance(node, Characters):
        return f"(?:{json_character(node)})" if json else node.pattern()
    if isinstance(node, Repeat):
        most = "" if node.most is None else str(node.most)
        return f"(?:{_written(node.part, json=json)}){{{node.least},{most}}}"
    joint = "|" if isinstance(node, Choice) else ""
    return f"(?:{joint.join(_written(part, json=json) for part in node.parts)})"


def parse(pattern: str) -> list[Branch]:
    """Return the alternatives of an expression.

    Raises:
        RequestError: the expression is none, or outside the dialect.
    """
    if len(pattern) > MAX_LENGTH:
        raise RequestError(
            f"the regular expression has {len(pattern)} characters",
            f"at most {MAX_LENGTH} are read",
        )
    return _Parser(pattern).branches()


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def error(self, what: str) -> RequestError:
        return RequestError(
            f"{what} at character {self.at} of the regular expression {self.text[:60]!r}",
            "docs/structured-output.md lists what is understood",
        )

    def ahead(self, *texts: str) -> str:
        """Return which of ``texts`` comes next, and go behind it; '' where none does."""
        for text in texts:
            if self.text.startswith(text, self.at):
                self.at += len(text)
                return text
        return ""

    def next(self) -> str:
        if self.at >= len(self.text):
            raise self.error("the end comes too early")
        self.at += 1
        return self.text[self.at - 1]

    def branches(self) -> list[Branch]:
        found = [self.branch()]
        while self.ahead("|"):
            found.append(self.branch())
        if self.at < len(self.text):
            raise self.error("unexpected " + repr(self.text[self.at]))
        return found

    def branch(self) -> Branch:
        begins = bool(self.ahead("^"))
        node = self.sequence(0)
        return Branch(node, begins, bool(self.ahead("$")))

    def choice(self, depth: int) -> Node:
        parts = [self.sequence(depth)]
        while self.ahead("|"):
            parts.append(self.sequence(depth))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def sequence(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} groups within one another")
        parts: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)$":
            parts.append(self.quantified(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def atom(self, depth: int) -> Node:
        if self.ahead("("):
            return self.group(depth)
        one = self.next()
        if one in "*+?{":
            raise self.error(f"nothing before {one!r} to repeat")
        if one == "^":
            raise self.error("an anchor that is not at an end")
        if one == "[":
            return self.characters()
        if one == "\\":
            return self.escape()
        return _DOT if one == "." else Characters.of(one)

    def group(self, depth: int) -> Node:
        if self.ahead("?") and not self.ahead(":"):
            if not self.ahead("P<", "<") or self.ahead("=", "!"):
                raise self.error("a kind of group that is not supported")
            while self.next() != ">":
                pass
        inner = self.choice(depth + 1)
        if not self.ahead(")"):
            raise self.error("an anchor or a missing )")
        return inner

    def quantified(self, node: Node) -> Node:
        least, most = 1, None
        if sign := self.ahead("*", "+", "?"):
            least, most = _QUANTIFIERS[sign]
        elif self.ahead("{"):
            least, most = self.counts()
        else:
            return node
        self.ahead("?")  # a lazy quantifier matches the same texts
        if self.ahead("+", "*", "{"):
            raise self.error("a quantifier of a quantifier")
        return Repeat(node, least, most)

    def counts(self) -> tuple[int, int | None]:
        inner = ""
        while (one := self.next()) != "}":
            inner += one
        first, comma, second = inner.partition(",")
        numbers = [part for part in (first, second) if part]
        if not first or not all(part.isascii() and part.isdigit() for part in numbers):
            raise self.error(f"no count in {{{inner}}}")
        if any(len(part) > 6 or int(part) > _MAX_REPEAT for part in numbers):
            raise self.error(f"a count above {_MAX_REPEAT}")
        least = int(first)
        most = least if not comma else int(second) if second else None
        if most is not None and most < least:
            raise self.error(f"a range that ends before it begins in {{{inner}}}")
        return least, most

    def characters(self) -> Node:
        """Read a class behind its ``[``."""
        negated = bool(self.ahead("^"))
        ranges, wide = list[tuple[int, int]](), False
        first = True
        while first or not self.ahead("]"):
            if not first and self.at >= len(self.text):
                raise self.error("a class without its ]")
            first = False
            low = self.member()
            if len(low.ranges) == 1 and low.ranges[0][0] == low.ranges[0][1] and self._spans():
                high = self.member()
                if len(high.ranges) != 1 or high.ranges[0][1] < low.ranges[0][0]:
                    raise self.error("a range that ends before it begins")
                low = Characters.of((low.ranges[0][0], high.ranges[0][1]))
            wide |= low in _CLASSES.values()
            ranges += low.ranges
        found = Characters.of(*ranges)
        if not negated:
            return found
        return (ASCII if wide else EVERY) - found

    def _spans(self) -> bool:
        """Return whether a ``-`` stands between two members, and go behind it."""
        if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] != "]":
            self.at += 1
            return True
        return False

    def member(self) -> Characters:
        one = self.next()
        if one == "[" or (one in "&~-" and self.text.startswith(one, self.at)):
            raise self.error(f"an unescaped {one!r} in a class")
        return self.escape(within=True) if one == "\\" else Characters.of(one)

    def escape(self, *, within: bool = False) -> Characters:
        """Read what stands behind a backslash."""
        one = self.next()
        if one in _CLASSES:
            return _CLASSES[one]
        if one in _ESCAPES:
            return Characters.of(_ESCAPES[one])
        if one in _HEX_DIGITS:
            return self.code(_HEX_DIGITS[one])
        if one.isalnum() and not (within and one == "b"):
            raise self.error(f"\\{one} is not supported")
        return Characters.of("\b" if one == "b" else one)

    def code(self, digits: int) -> Characters:
        text = self.text[self.at : self.at + digits]
        try:
            point = int(text, 16)
        except ValueError:
            raise self.error("no hexadecimal code") from None
        if len(text) < digits or not text.isalnum():
            raise self.error("no hexadecimal code")
        self.at += digits
        return Characters.of((point, point))
