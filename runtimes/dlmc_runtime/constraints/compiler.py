"""From what a request asks its text to be to an automaton, once for all requests alike."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from dlmc_runtime.constraints import machine, regex, schema
from dlmc_runtime.constraints.automaton import Automaton, automaton
from dlmc_runtime.constraints.lexicon import Lexicon
from dlmc_runtime.errors import RequestError
from dlmc_runtime.manifest import Manifest
from dlmc_runtime.text import TextCodec

KEPT = 64
"""Constraints that a compiler remembers."""

MAX_SCHEMA_BYTES = 100_000


class Compiler:
    """Makes the constraints of one bundle, and remembers the last ones. Safe to share by threads.

    Args:
        codec: the bundle's tokenizer.
        manifest: says which ids stop a text, and which cannot be predicted.
        kept: how many constraints to remember.
    """

    def __init__(self, codec: TextCodec, manifest: Manifest, kept: int = KEPT) -> None:
        self._codec, self._manifest, self._kept = codec, manifest, kept
        self._found: OrderedDict[str, Automaton | RequestError] = OrderedDict()
        self._lexicon: Lexicon | None = None
        self._lock, self._making = Lock(), Lock()

    def regex(self, pattern: str) -> Automaton:
        """Return the constraint that a regular expression matches the whole text.

        Raises:
            RequestError: the expression is not understood, matches nothing, or is too large.
        """
        return self._get(f"regex {pattern}", lambda: regex.whole(pattern))

    def expression(self, text: str) -> Automaton:
        """Return the constraint that the whole text matches a Rust expression.

        Such are what `schema.expression` returns, alone or with other texts around them.

        Raises:
            RequestError: it matches nothing, or is too large.
        """
        return self._get(f"expression {text}", lambda: text)

    def json_schema(self, description: Mapping[str, Any] | bool) -> Automaton:  # noqa: FBT001
        """Return the constraint that the text is JSON which validates against a schema.

        Raises:
            RequestError: a keyword is not understood, nothing validates, or it is too large.
        """
        try:
            text = json.dumps(description, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise RequestError("the JSON schema is no JSON", "give an object") from None
        if len(text) > MAX_SCHEMA_BYTES:
            raise RequestError(
                f"the JSON schema has {len(text)} bytes", f"at most {MAX_SCHEMA_BYTES} are read"
            )
        return self._get(f"schema {text}", lambda: schema.expression(description))

    def json_object(self) -> Automaton:
        """Return the constraint that the text is a JSON object, of bounded depth."""
        return self._get("object", schema.any_object)

    def _get(self, key: str, expression: Callable[[], str]) -> Automaton:
        found = self._known(key)
        if found is not None:
            return found
        with self._making:  # one at a time: what two ask for at once is made once
            found = self._known(key)
            if found is None:
                try:
                    found = automaton(machine.build(expression()), self._read())
                except RequestError as error:  # to find that out again would take as long
                    self._keep(key, RequestError(error.message, error.hint))
                    raise
                self._keep(key, found)
            return found

    def _keep(self, key: str, made: Automaton | RequestError) -> None:
        with self._lock:
            self._found[key] = made
            while len(self._found) > self._kept:
                self._found.popitem(last=False)

    def _known(self, key: str) -> Automaton | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
        if isinstance(found, RequestError):
            raise RequestError(found.message, found.hint)
        return found

    def _read(self) -> Lexicon:
        if self._lexicon is None:
            tokens = self._manifest.tokens
            edits = (tokens.mask, tokens.expand, tokens.delete, tokens.split)
            never = {*tokens.suppressed, *(token for token in edits if token is not None)}
            size = self._manifest.model.vocab_size
            if all(token in never for token in tokens.stop):
                raise RequestError(
                    f"{self._manifest.family} has no token that ends a text",
                    "ask for free text, and check it",
                )
            self._lexicon = Lexicon.of(self._codec, size, tokens.stop, never)
        return self._lexicon


def compile_regex(pattern: str, codec: TextCodec, manifest: Manifest) -> Automaton:
    """Return the constraint of `Compiler.regex`, without remembering it."""
    return Compiler(codec, manifest).regex(pattern)


def compile_schema(
    description: Mapping[str, Any] | bool,  # noqa: FBT001  (true and false are schemas)
    codec: TextCodec,
    manifest: Manifest,
) -> Automaton:
    """Return the constraint of `Compiler.json_schema`, without remembering it."""
    return Compiler(codec, manifest).json_schema(description)


def compile_json_object(codec: TextCodec, manifest: Manifest) -> Automaton:
    """Return the constraint of `Compiler.json_object`, without remembering it."""
    return Compiler(codec, manifest).json_object()
