import json

import pytest
from records import ENGINE, refusal

from dlmc_runtime.engine_record import parse_engine_record


def test_an_engine_record_survives_a_round_trip():
    parsed = parse_engine_record(json.dumps(ENGINE).encode())
    assert parse_engine_record(parsed.model_dump_json().encode()) == parsed


@pytest.mark.parametrize("key", sorted(ENGINE))
def test_every_key_of_an_engine_record_is_needed(key):
    data = {name: value for name, value in ENGINE.items() if name != key}
    assert "manifest.json" not in refusal(data, parse_engine_record)
