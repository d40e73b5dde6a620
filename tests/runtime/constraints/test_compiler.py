from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dlmc_runtime.constraints import (
    Compiler,
    compile_json_object,
    compile_regex,
    compile_schema,
    machine,
)
from dlmc_runtime.errors import RequestError

EOS = 60


@pytest.fixture
def counted(monkeypatch):
    """The expressions that were compiled."""
    asked = []
    build = machine.build

    def noting(text):
        asked.append(text)
        return build(text)

    monkeypatch.setattr(machine, "build", noting)
    return asked


def test_the_same_constraint_is_made_once(codec, manifest, counted):
    compiler = Compiler(codec, manifest())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(compiler.regex, ["ab"] * 8))
    assert len(counted) == 1
    assert all(one is found[0] for one in found)


def test_the_oldest_constraint_is_forgotten_first(codec, manifest, counted):
    compiler = Compiler(codec, manifest(), kept=2)
    for pattern in ("a", "b", "a", "c", "a", "b"):
        compiler.regex(pattern)
    assert len(counted) == 4


def test_schemas_are_alike_only_in_the_same_order(codec, manifest, counted):
    """Properties come in the schema's order."""
    compiler = Compiler(codec, manifest())
    for names in ("ab", "ba"):
        properties = {name: {"type": "null"} for name in names}
        with pytest.raises(RequestError):  # the vocabulary has no braces
            compiler.json_schema({"type": "object", "properties": properties})
    assert len({*counted}) == 2


def test_a_pattern_is_not_taken_for_an_expression_that_reads_the_same(codec, manifest, counted):
    compiler = Compiler(codec, manifest())
    for make in (compiler.regex, compiler.expression):
        make("ab")
    assert len(counted) == 2


def test_texts_decide_by_what_they_say(codec, manifest):
    number = {"type": "integer", "minimum": 7, "maximum": 9}
    for made in (
        compile_regex("[7-9]", codec, manifest()),
        compile_schema(number, codec, manifest()),
    ):
        assert made.accepts(np.array([*codec.encode("8"), EOS]))
        assert not made.accepts(np.array(codec.encode("6")))


def test_a_vocabulary_without_braces_writes_no_object(codec, manifest):
    with pytest.raises(RequestError, match="no text of the model's tokens"):
        compile_json_object(codec, manifest())


@pytest.mark.parametrize("description", [{"const": float("nan")}, {1: object()}, {"a": {1, 2}}])
def test_what_is_no_json_is_refused(codec, manifest, description):
    with pytest.raises(RequestError, match="no JSON"):
        Compiler(codec, manifest()).json_schema(description)


def test_a_large_schema_is_refused(codec, manifest):
    with pytest.raises(RequestError, match="bytes"):
        Compiler(codec, manifest()).json_schema({"description": "x" * 200_000})


def test_a_bundle_whose_texts_never_end_is_refused(codec, manifest):
    tokens = {"mask": 63, "stop": (), "pad": 61, "suppressed": (63,)}
    with pytest.raises(RequestError, match="no token that ends a text"):
        Compiler(codec, manifest(tokens=tokens)).regex("a")


@pytest.mark.parametrize("edits", [{"expand": "a"}, {"delete": "a"}, {"split": "a", "delete": "b"}])
def test_a_token_that_edits_a_canvas_is_no_text(codec, manifest, edits):
    ids = {name: codec.encode(text)[0] for name, text in edits.items()}
    tokens = manifest().tokens.model_dump() | ids
    with pytest.raises(RequestError, match="no text of the model's tokens"):
        Compiler(codec, manifest(tokens=tokens)).regex("a")


def test_what_is_refused_is_not_tried_again(codec, manifest, counted):
    compiler = Compiler(codec, manifest())
    said = set()
    for _ in range(3):
        with pytest.raises(RequestError, match="no text meets the constraint") as caught:
            compiler.regex(r"a[^\s\S]")
        said.add(str(caught.value))
    assert len(counted) == len(said) == 1
