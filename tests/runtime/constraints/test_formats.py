import json
import random

import pytest
from jsonschema import Draft202012Validator

from dlmc_runtime.constraints.formats import FORMATS

EXAMPLES = {
    "date": "2024-02-28",
    "time": "23:59:59Z",
    "date-time": "1999-12-31T00:00:00.5+02:00",
    "email": "a.b+c@example.org",
    "hostname": "db-1.example.org",
    "ipv4": "127.0.0.1",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
}
WRONG = {
    "date": "2024-02-30",
    "time": "24:00:00Z",
    "date-time": "1999-12-31",
    "email": "a@",
    "hostname": "-a.b",
    "ipv4": "256.1.1.1",
    "uuid": "123e4567",
}


@pytest.mark.parametrize("name", FORMATS)
def test_texts_of_a_format_are_of_that_format(machine, walk, matches, name):
    made = machine(FORMATS[name])
    assert matches(made, EXAMPLES[name])
    assert not matches(made, WRONG[name])
    checker = Draft202012Validator.FORMAT_CHECKER
    validator = Draft202012Validator({"format": name}, format_checker=checker)
    for seed in range(50):
        text = walk(made, random.Random(seed), 40)
        assert validator.is_valid(json.loads(json.dumps(text))), text
