"""Typed access to the keys of a checkpoint's JSON files; every refusal names key and file."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from dlmc_runtime.errors import CheckpointError

LARGEST_SIZE = 1 << 24  # small enough that no product of three overflows
MOST_LAYERS = 4096

Supported = Mapping[str, tuple[bool | int | float | str | None, ...]]
"""The values dlmc implements, for each key that switches parts of a network on and off. None
stands for null and for an absent key, so it is listed only where the absence is harmless."""


@dataclass(frozen=True)
class Keys:
    """The contents of one JSON file. Null counts as absent, as it does in the reference code."""

    values: Mapping[str, Any]
    file: str = "config.json"

    def refuse(self, problem: str, hint: str = "") -> NoReturn:
        """Raise `CheckpointError` about this file."""
        raise CheckpointError(f"{self.file}: {problem}", hint)

    def _get(self, key: str, wanted: str) -> Any:
        value = self.values.get(key)
        if value is None:
            self.refuse(f"{key!r} is missing", f"add {wanted} of the original checkpoint")
        return value

    def _wrong(self, key: str, wanted: str) -> NoReturn:
        shown = json.dumps(self.values[key])
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        self.refuse(f"{key!r} is {shown}", f"it must be {wanted}")

    def has(self, key: str) -> bool:
        """Return whether ``key`` is there and not null."""
        return self.values.get(key) is not None

    def integer(
        self, key: str, default: int | None = None, most: int = LARGEST_SIZE, least: int = 1
    ) -> int:
        """Return a size or count, ``least`` to ``most``."""
        if default is not None and not self.has(key):
            return default
        wanted = f"a whole number from {least} to {most}"
        value = self._get(key, wanted)
        if type(value) is not int or not least <= value <= most:
            self._wrong(key, wanted)
        return value

    def number(self, key: str, least: float = 0.0, most: float = sys.float_info.max) -> float:
        """Return a positive, finite number from ``least`` to ``most``."""
        value = self._get(key, "the number")
        if type(value) not in (int, float) or value <= 0 or not least <= value <= most:
            bounded = most < sys.float_info.max
            self._wrong(key, f"from {least:g} to {most:g}" if bounded else "a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """Return a switch."""
        if default is not None and not self.has(key):
            return default
        value = self._get(key, "true or false, the value")
        if type(value) is not bool:
            self._wrong(key, "true or false")
        return value

    def architecture(self, known: tuple[str, ...]) -> str:
        """Return the one of ``known`` that this file states; the first where it states none."""
        stated = self.values.get("architectures")
        names = stated if isinstance(stated, list) else []
        return next((name for name in known if name in names), known[0])

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """Return token ids, given as one number or a list; () where ``key`` is absent."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
            self._wrong(key, f"made of token ids from 0 to {vocab_size - 1}")
        return tuple(dict.fromkeys(ids))

    def token(self, key: str, vocab_size: int) -> int | None:
        """Return one token id; None where ``key`` is absent."""
        ids = self.tokens(key, vocab_size)
        if len(ids) > 1:
            self._wrong(key, "one token id")
        return ids[0] if ids else None

    def require(self, supported: Supported) -> None:
        """Refuse the first key whose value switches on something dlmc does not implement."""
        for key, allowed in supported.items():
            value = self.values.get(key)
            if not any(
                value is one or (value == one and type(value) is type(one)) for one in allowed
            ):
                shown = "missing" if key not in self.values else json.dumps(value)[:40]
                values = " or ".join(json.dumps(one) for one in allowed)
                self.refuse(f"{key!r} is {shown}", f"this version of dlmc implements {values} only")

    def check_heads(self, heads: int, key_value_heads: int, head_dim: int) -> None:
        """Refuse heads that cannot be grouped, rotated or held."""
        if heads % key_value_heads:
            self.refuse(
                f"{heads} attention heads cannot share {key_value_heads} key-value heads",
                "the first must be a multiple of the second",
            )
        if head_dim % 2:
            self.refuse(f"the head size {head_dim} is odd", "rotary embedding needs an even one")
        if heads * head_dim > LARGEST_SIZE:
            self.refuse(f"{heads} heads of size {head_dim} are too many", "correct one of them")
