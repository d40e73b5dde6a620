"""Hostile manifests: every one ends in a `BundleError` that names the first offending field."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime import manifest
from dlmc_runtime.errors import BundleError
from dlmc_runtime.manifest import parse_engine_record, parse_manifest

HASH = "0" * 64
PROFILE = {"batch": 1, "block": 8, "cache": 64, "rows": 8}
MANIFEST: dict[str, Any] = {
    "schema_version": 2,
    "family": "sdar",
    "architecture": "SDARForCausalLM",
    "attention": {"regime": "block", "block_length": 8},
    "shift": 0,
    "tokens": {"mask": 9, "stop": [2], "pad": 0, "bos": None, "suppressed": [9]},
    "model": {
        "vocab_size": 16,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "parameters": 1000,
    },
    "head": {"variant": "plain", "candidates": 4},
    "precision": "float32",
    "inputs": [{"name": "input_ids", "dtype": "int64", "shape": ["batch", "block"]}],
    "outputs": [{"name": "top_ids", "dtype": "int64", "shape": ["batch", "rows", 4]}],
    "profiles": [PROFILE],
    "sampler": {"name": "low_confidence_dynamic", "parameters": {"threshold": 0.9}},
    "max_new_tokens": 32,
    "text": {"tokenizer": "tokenizer/tokenizer.json"},
    "tolerances": {"top_logits": {"atol": 1e-3}},
    "provenance": {"source": "tiny", "versions": {"dlmc": "0.1.0"}},
    "config": "config.json",
    "graph": "denoiser.onnx",
    "weights": ["weights/model.safetensors"],
    "files": {
        "config.json": {"size": 1, "sha256": HASH},
        "denoiser.onnx": {"size": 1, "sha256": HASH},
        "weights/model.safetensors": {"size": 1, "sha256": HASH},
        "tokenizer/tokenizer.json": {"size": 1, "sha256": HASH},
    },
}
ENGINE: dict[str, Any] = {
    "schema_version": 2,
    "target": "onnxruntime-cpu",
    "device": "cpu",
    "precision": "float32",
    "profiles": [PROFILE],
    "plan": "denoiser.onnx",
    "manifest_sha256": HASH,
    "requires": {"library": "onnxruntime", "version": "1.32.0", "match": "any"},
    "versions": {"onnxruntime": "1.32.0"},
    "files": {},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def _places(data, prefix=()):
    """List the path of every value inside ``data``."""
    if not isinstance(data, dict | list):
        return
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield (*prefix, key)
        yield from _places(value, (*prefix, key))


def _with(place, value):
    """Return the manifest with the value at ``place`` replaced."""
    data = copy.deepcopy(MANIFEST)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return data


def _refusal(data, parse=parse_manifest):
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(BundleError) as caught:
        parse(text)
    assert caught.value.hint
    return caught.value.message


def test_a_manifest_survives_a_round_trip():
    parsed = parse_manifest(json.dumps(MANIFEST).encode())
    assert parse_manifest(parsed.model_dump_json().encode()) == parsed


def test_an_engine_record_survives_a_round_trip():
    parsed = parse_engine_record(json.dumps(ENGINE).encode())
    assert parse_engine_record(parsed.model_dump_json().encode()) == parsed


def test_a_manifest_is_frozen():
    parsed = parse_manifest(json.dumps(MANIFEST).encode())
    with pytest.raises(ValueError, match="frozen"):
        parsed.family = "llada"


@pytest.mark.parametrize("key", sorted(MANIFEST))
def test_every_key_is_needed(key):
    data = {name: value for name, value in MANIFEST.items() if name != key}
    expected = "schema version" if key == "schema_version" else f"{key}: Field required"
    assert expected in _refusal(data)


@pytest.mark.parametrize("key", sorted(ENGINE))
def test_every_key_of_an_engine_record_is_needed(key):
    data = {name: value for name, value in ENGINE.items() if name != key}
    assert "manifest.json" not in _refusal(data, parse_engine_record)


def test_unknown_keys_are_refused():
    assert "surprise" in _refusal({**MANIFEST, "surprise": 1})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("family",), 1),
        (("shift",), 2),
        (("attention", "regime"), "causal"),
        (("attention", "block_length"), 0),
        (("attention", "block_length"), "8"),
        (("attention", "block_length"), 8.0),
        (("attention", "block_length"), True),
        (("model", "vocab_size"), -1),
        (("model", "vocab_size"), 1 << 60),
        (("tokens", "mask"), -1),
        (("tokens", "stop"), 2),
        (("precision",), "int1"),
        (("profiles",), []),
        (("profiles", 0, "rows"), 9),
        (("inputs", 0, "shape"), [-1, "block"]),
        (("inputs", 0, "dtype"), "object"),
        (("files", "denoiser.onnx", "size"), -1),
        (("files", "denoiser.onnx", "sha256"), "0" * 63),
        (("files", "denoiser.onnx", "sha256"), "A" * 64),
        (("files", "denoiser.onnx", "sha256"), HASH + "\n"),
        (("tolerances", "top_logits", "atol"), -1.0),
        (("sampler", "parameters"), {"threshold": {"deep": 1}}),
    ],
)
def test_a_wrong_value_is_named(place, value):
    named = ".".join(map(str, place[:2]))
    assert named in _refusal(_with(place, value))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "place", [("tolerances", "top_logits", "atol"), ("sampler", "parameters", "threshold")]
)
def test_numbers_are_finite(place, number):
    text = json.dumps(_with(place, "@")).replace('"@"', number)
    assert ".".join(place) in _refusal(text.encode())


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "/",
        "/etc/passwd",
        "//host/share",
        "../outside",
        "weights/../../outside",
        "weights/..",
        "./denoiser.onnx",
        "weights//model",
        "weights/",
        "C:/windows",
        "c:model",
        "weights\\model",
        "a\0b",
    ],
)
def test_a_path_stays_inside_the_bundle(path):
    data = _with(("graph",), path)
    data["files"][path] = {"size": 1, "sha256": HASH}
    assert "path" in _refusal(data)


@given(st.text(max_size=20) | st.from_regex(r"[a-z./\\:~]{0,12}", fullmatch=True))
def test_an_accepted_path_stays_inside_the_bundle(path):
    data = _with(("graph",), path)
    data["files"][path] = {"size": 1, "sha256": HASH}
    try:
        accepted = parse_manifest(json.dumps(data).encode()).graph
    except BundleError:
        return
    root = Path("/bundle")
    assert (root / accepted).is_relative_to(root)
    assert ".." not in Path(accepted).parts


@pytest.mark.parametrize("name", sorted(MANIFEST["files"]))
def test_every_file_has_a_size_and_a_hash(name):
    files = {other: record for other, record in MANIFEST["files"].items() if other != name}
    assert f"no size and hash for {name}" in _refusal({**MANIFEST, "files": files})


def test_a_block_is_no_longer_than_the_model_reaches():
    message = _refusal(_with(("attention", "block_length"), 65))
    assert "blocks of 65 exceed the model's 64 positions" in message


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("tokens", "mask"), 1 << 20, "outside a vocabulary"),
        (("tokens", "expand"), 1 << 20, "outside a vocabulary"),
        (("tokens", "stop"), [1 << 20], "outside a vocabulary"),
        (("tokens", "suppressed"), [], "the mask must be suppressed"),
        (("tokens", "stop"), [MANIFEST["tokens"]["mask"]], "and stop nothing"),
        (("tokens", "expand"), MANIFEST["tokens"]["mask"], "the expand token must differ"),
        (("tokens", "delete"), MANIFEST["tokens"]["mask"], "the delete token must differ"),
        (("tokens", "split"), 1 << 20, "outside a vocabulary"),
        (("tokens", "split"), 1, "a split token goes with a mask and a delete token"),
        (("inputs",), MANIFEST["inputs"] * 2, "the same name"),
        (("head", "variant"), "guided", "inputs of a guided head"),
        (("attention", "sliding_window"), 4, "go together"),
        (("head", "candidates"), 1 << 20, "candidates are not what the graph keeps"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(place, value, said):
    assert said in _refusal(_with(place, value))


@pytest.mark.parametrize(
    "changed",
    [
        {"split": 5},
        {"split": MANIFEST["tokens"]["mask"]},
        {"split": MANIFEST["tokens"]["stop"][0]},
        {"expand": 5},
        {"expand": 6},
    ],
)
def test_tokens_that_edit_are_all_different(changed):
    edits = {"delete": 5, "split": 6}
    parse_manifest(json.dumps(_with(("tokens",), MANIFEST["tokens"] | edits)).encode())
    data = _with(("tokens",), MANIFEST["tokens"] | edits | changed)
    assert "token" in _refusal(data)


def test_a_newer_schema_says_what_this_version_reads():
    message = _refusal({**MANIFEST, "schema_version": manifest.SCHEMA_VERSION + 1})
    assert f"this dlmc reads {manifest.SCHEMA_VERSION}" in message


@pytest.mark.parametrize("version", [True, 1.0, "1", None, [], 0, -1])
def test_a_schema_version_is_an_integer_that_exists(version):
    assert "schema" in _refusal({**MANIFEST, "schema_version": version})


def test_a_key_given_twice_is_refused():
    text = json.dumps(MANIFEST).replace('"family": "sdar"', '"family": "llada", "family": "sdar"')
    assert "twice" in _refusal(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"\xff\xfe",
        b"\x80\x04K\x01.",
        b'{"schema_version": 1}' + b"\0",
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"schema_version": ' + b"9" * 5_000 + b"}",
        json.dumps(MANIFEST).encode("utf-16"),
        json.dumps(MANIFEST).encode() + b"{}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_not_a_manifest_is_refused(text):
    assert "manifest.json" in _refusal(text)


def test_a_huge_file_is_refused_before_it_is_parsed():
    assert "larger than" in _refusal(b" " * (manifest.MAX_MANIFEST_BYTES + 1))


def test_a_message_repeats_no_control_characters_and_stays_short():
    message = _refusal({**MANIFEST, "\x1b[2J" + "x" * 10_000: 1})
    assert message.isprintable()
    assert len(message) < 400


@given(st.binary(max_size=200))
def test_bytes_are_refused(text):
    _refusal(text)


@given(JSON)
def test_json_is_refused(data):
    _refusal(data)


@given(st.sampled_from(list(_places(MANIFEST))), JSON)
def test_one_changed_value_is_refused_or_read_back_as_it_is(place, value):
    text = json.dumps(_with(place, value)).encode()
    try:
        parsed = parse_manifest(text)
    except BundleError:
        return
    assert parse_manifest(parsed.model_dump_json().encode()) == parsed
