"""What every record has in common, shown on manifests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import JSON, MANIFEST, changed, places, refusal

from dlmc_runtime.errors import BundleError
from dlmc_runtime.manifest import parse_manifest
from dlmc_runtime.record import MAX_MANIFEST_BYTES, SCHEMA_VERSION


def test_a_newer_schema_says_what_this_version_reads():
    message = refusal({**MANIFEST, "schema_version": SCHEMA_VERSION + 1})
    assert f"this dlmc reads {SCHEMA_VERSION}" in message


@pytest.mark.parametrize("version", [True, 1.0, "1", None, [], 0, -1])
def test_a_schema_version_is_an_integer_that_exists(version):
    assert "schema" in refusal({**MANIFEST, "schema_version": version})


def test_a_key_given_twice_is_refused():
    text = json.dumps(MANIFEST).replace('"family": "sdar"', '"family": "llada", "family": "sdar"')
    assert "twice" in refusal(text.encode())


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
    assert "manifest.json" in refusal(text)


def test_a_huge_file_is_refused_before_it_is_parsed():
    assert "larger than" in refusal(b" " * (MAX_MANIFEST_BYTES + 1))


def test_a_message_repeats_no_control_characters_and_stays_short():
    message = refusal({**MANIFEST, "\x1b[2J" + "x" * 10_000: 1})
    assert message.isprintable()
    assert len(message) < 400


@given(st.binary(max_size=200))
def test_bytes_are_refused(text):
    refusal(text)


@given(JSON)
def test_json_is_refused(data):
    refusal(data)


@given(st.sampled_from(list(places(MANIFEST))), JSON)
def test_one_changed_value_is_refused_or_read_back_as_it_is(place, value):
    text = json.dumps(changed(place, value)).encode()
    try:
        parsed = parse_manifest(text)
    except BundleError:
        return
    assert parse_manifest(parsed.model_dump_json().encode()) == parsed
