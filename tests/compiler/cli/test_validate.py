from pathlib import Path

import pytest

pytest.importorskip("torch")

from dlmc.validate import run
from dlmc.validate.prompts import Wanted
from dlmc.validate.report import Layers, Place, PointError, Report, Row
from dlmc.validate.run import Validation, Wishes
from dlmc_runtime.manifest import Tolerance

GOOD = Row(
    "logsumexp",
    64,
    0,
    0.25,
    Tolerance(atol=0.5),
    True,
    Place("logsumexp", 0, 3, 9, (0, 1), 0.5, 0.25),
)
BAD = Row(
    "top_ids", 64, 2, 0.03125, Tolerance(atol=0.0), False, Place("top_ids", 0, 5, 17, (0, 1), 7, 8)
)


def _report(*rows, **changes):
    fields = {
        "bundle": "tiny",
        "engine": "onnxruntime-cpu",
        "against": "torch",
        "precision": "float32",
        "quantization": "none",
        "versions": {},
        "prompts": ("a", "b"),
        "forwards": 17,
        "rows": rows,
    }
    return Report(**{**fields, **changes})


@pytest.fixture
def validated(monkeypatch):
    """Put reports in the place of a validation; the list holds what was asked for."""
    calls = []

    def replace(*reports, notes=()):
        def validate_bundle(root, wishes):
            calls.append((root, wishes))
            return Validation(reports, notes)

        monkeypatch.setattr(run, "validate_bundle", validate_bundle)
        return calls

    return replace


def test_agreement_is_a_table_and_status_0(dlmc, validated):
    validated(_report(GOOD))
    outcome = dlmc("validate", "bundle")
    assert (outcome.status, outcome.err) == (0, "")
    assert "tiny: onnxruntime-cpu against torch, 17 forwards of 2 prompts" in outcome.out
    assert "prompt 0, forward 3, position 9 [0,1]: 0.5, not 0.25" in outcome.out
    assert outcome.out.splitlines()[2].split()[:6] == ["logsumexp", "ok", "64", "0", "0.25", "0.5"]


def test_a_disagreement_names_output_forward_position_and_values(dlmc, validated):
    validated(_report(GOOD, BAD))
    outcome = dlmc("validate", "bundle")
    assert outcome.status == 1
    sentence = "top_ids at prompt 0, forward 5, position 17 [0,1]: 7, not 8 (2 of 64 differ)"
    assert f"different: {sentence}" in outcome.out
    assert f"onnxruntime-cpu disagrees with torch in {sentence}" in outcome.err


def test_one_engine_that_disagrees_is_enough(dlmc, validated):
    validated(_report(GOOD), _report(BAD, engine="openvino-cpu"), notes=("x is left out: y",))
    outcome = dlmc("validate", "bundle")
    assert outcome.status == 1
    assert "openvino-cpu disagrees" in outcome.err
    assert "x is left out: y" in outcome.err
    assert "onnxruntime-cpu against torch" in outcome.out


def test_json(dlmc, validated):
    validated(_report(GOOD, BAD))
    outcome = dlmc("validate", "bundle", "--json")
    assert outcome.status == 1
    assert outcome.json["ok"] is False
    (report,) = outcome.json["reports"]
    assert report["rows"][1]["where"]["ours"] == 7
    assert report["failures"][0].startswith("top_ids at prompt 0")


def test_the_first_layer_out_of_tolerance_is_named(dlmc, validated):
    point = PointError("layers.2.mlp.up_proj", 0.5, 0.75, None, False)
    validated(_report(BAD, layers=Layers("graph", 0.1, 0.3, (point,))))
    outcome = dlmc("validate", "bundle", "--bisect")
    assert "layers.2.mlp.up_proj is the first to leave the tolerance" in outcome.out
    assert "a vector by 0.5 (0.1 allowed), a feature by 0.75 (0.3 allowed)" in outcome.out


def test_sound_layers_are_said_to_be(dlmc, validated):
    validated(_report(GOOD, layers=Layers("graph", 0.1, 0.3, ())))
    assert "no layer leaves the tolerance" in dlmc("validate", "bundle").out


def test_what_a_file_brings_does_not_steer_the_terminal(dlmc, validated):
    validated(_report(BAD, bundle="\x1b[31mred", notes=("\x1b]0;title\x07",)))
    outcome = dlmc("validate", "bundle")
    assert "\x1b" not in outcome.out + outcome.err


def test_options_reach_the_validation(dlmc, validated):
    calls = validated(_report(GOOD))
    targets = ("--target", "onnxruntime-cpu", "--target", "openvino-cpu-bf16")
    prompts = ("--prompt", "a", "--prompt", "b", "--max-new-tokens", "5")
    rest = ("--against", "graph", "--bisect", "--no-html", "--save-states", "here")
    dlmc("validate", "bundle", *targets, *prompts, *rest)
    dlmc("validate", "bundle")
    dlmc("validate", "bundle", "--no-layers")
    assert calls[0] == (
        Path("bundle"),
        Wishes(
            engines=("onnxruntime-cpu", "openvino-cpu-bf16"),
            against="graph",
            wanted=Wanted(("a", "b"), 5),
            bisect=True,
            page=False,
            save_to=Path("here"),
        ),
    )
    assert calls[1] == (Path("bundle"), Wishes())
    assert calls[2] == (Path("bundle"), Wishes(layers=False))
