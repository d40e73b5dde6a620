from pathlib import Path

import pytest

pytest.importorskip("torch")

from dlmc.validate import run
from dlmc.validate.report import Report, Row


@pytest.fixture
def validated(monkeypatch):
    """Put a report in the place of a validation; the list holds what was asked for."""
    calls = []

    def replace(*rows):
        def validate_bundle(*arguments, **options):
            calls.append((arguments, options))
            return Report("tiny", "onnxruntime-cpu", "torch", 2, 17, rows)

        monkeypatch.setattr(run, "validate_bundle", validate_bundle)
        return calls

    return replace


GOOD = Row("logsumexp", 64, 0.25, 0.5, ok=True, where="forward 3, row 0")
BAD = Row("top_ids", 64, 1.0, 0.0, ok=False, where="forward 5, row 1: 7, not 8")


def test_agreement_is_a_table_and_status_0(dlmc, validated):
    validated(GOOD)
    outcome = dlmc("validate", "bundle")
    assert (outcome.status, outcome.err) == (0, "")
    assert "tiny: onnxruntime-cpu against torch, 17 forwards of 2 prompts" in outcome.out
    assert "logsumexp  ok  64        0.25        0.5        forward 3, row 0" in outcome.out


def test_a_disagreement_names_the_output_and_the_place(dlmc, validated):
    validated(GOOD, BAD)
    outcome = dlmc("validate", "bundle")
    assert outcome.status == 1
    assert "DIFFERENT" in outcome.out
    assert "disagrees with torch in top_ids: forward 5, row 1: 7, not 8" in outcome.err


def test_json(dlmc, validated):
    validated(GOOD, BAD)
    outcome = dlmc("validate", "bundle", "--json")
    assert outcome.status == 1
    assert outcome.json["ok"] is False
    assert outcome.json["rows"][1]["where"] == BAD.where


def test_options_reach_the_validation(dlmc, validated):
    calls = validated(GOOD)
    prompts = ("--prompt", "a", "--prompt", "b")
    dlmc("validate", "bundle", *prompts, "--max-new-tokens", "5", "--save-states", "here")
    dlmc("validate", "bundle")
    assert calls[0][0][1:] == ("onnxruntime-cpu", ("a", "b"))
    assert calls[0][1] == {"max_new_tokens": 5, "save_to": Path("here")}
    assert (calls[1][0][2], calls[1][1]) == ((), {"save_to": None})
