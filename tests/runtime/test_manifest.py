"""Hostile manifests: every one ends in a `BundleError` that names the first offending field."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import HASH, MANIFEST, changed, refusal

from dlmc_runtime.errors import BundleError
from dlmc_runtime.manifest import parse_manifest


def test_a_manifest_survives_a_round_trip():
    parsed = parse_manifest(json.dumps(MANIFEST).encode())
    assert parse_manifest(parsed.model_dump_json().encode()) == parsed


def test_a_manifest_is_frozen():
    parsed = parse_manifest(json.dumps(MANIFEST).encode())
    with pytest.raises(ValueError, match="frozen"):
        parsed.family = "llada"


@pytest.mark.parametrize("key", sorted(MANIFEST))
def test_every_key_is_needed(key):
    data = {name: value for name, value in MANIFEST.items() if name != key}
    expected = "schema version" if key == "schema_version" else f"{key}: Field required"
    assert expected in refusal(data)


def test_unknown_keys_are_refused():
    assert "surprise" in refusal({**MANIFEST, "surprise": 1})


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
    assert named in refusal(changed(place, value))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    "place", [("tolerances", "top_logits", "atol"), ("sampler", "parameters", "threshold")]
)
def test_numbers_are_finite(place, number):
    text = json.dumps(changed(place, "@")).replace('"@"', number)
    assert ".".join(place) in refusal(text.encode())


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
    data = changed(("graph",), path)
    data["files"][path] = {"size": 1, "sha256": HASH}
    assert "path" in refusal(data)


@given(st.text(max_size=20) | st.from_regex(r"[a-z./\\:~]{0,12}", fullmatch=True))
def test_an_accepted_path_stays_inside_the_bundle(path):
    data = changed(("graph",), path)
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
    assert f"no size and hash for {name}" in refusal({**MANIFEST, "files": files})


def test_a_block_is_no_longer_than_the_model_reaches():
    message = refusal(changed(("attention", "block_length"), 65))
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
    assert said in refusal(changed(place, value))


@pytest.mark.parametrize(
    "other",
    [
        {"split": 5},
        {"split": MANIFEST["tokens"]["mask"]},
        {"split": MANIFEST["tokens"]["stop"][0]},
        {"expand": 5},
        {"expand": 6},
    ],
)
def test_tokens_that_edit_are_all_different(other):
    edits = {"delete": 5, "split": 6}
    parse_manifest(json.dumps(changed(("tokens",), MANIFEST["tokens"] | edits)).encode())
    data = changed(("tokens",), MANIFEST["tokens"] | edits | other)
    assert "token" in refusal(data)
