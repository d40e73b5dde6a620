import json
import re
import shutil
from pathlib import Path

import pytest
from damage import break_mask, copy_engine, flip_weight, set_nan, swap_scales

from dlmc.cli import app
from dlmc.validate.prompts import Wanted
from dlmc.validate.reference import load_graph
from dlmc.validate.run import Validation, Wishes, validate, validate_bundle
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import BundleError, EngineError, UsageError

TARGET = "onnxruntime-cpu"
SHORT = Wanted(max_new_tokens=8)


def _wishes(*names, **options):
    return Wishes(engines=names, **{"wanted": SHORT, "page": False, "layers": False, **options})


def test_a_sound_engine_passes_and_leaves_its_report(bundle):
    done = validate_bundle(bundle.root, _wishes(TARGET, layers=True, page=True))
    assert done.ok
    (report,) = done.reports
    assert (report.engine, report.against) == (TARGET, "torch")
    assert len(report.prompts) == 2
    assert report.forwards > 2
    assert [row.output for row in report.rows][-3:] == ["committed", "generation", "layers"]
    assert report.divergence is None
    folder = bundle.root / "validation"
    saved = json.loads((folder / f"{TARGET}.json").read_text())
    assert saved == json.loads(json.dumps(report.to_json()))
    assert saved["ok"] is True
    assert {"dlmc", "onnxruntime", "polygraphy", "torch"} <= saved["versions"].keys()
    assert "Everything agrees" in (folder / f"{TARGET}.html").read_text(encoding="utf-8")
    assert Bundle.open(bundle.root).manifest == bundle.manifest


def test_a_page_of_an_earlier_run_does_not_stay(bundle):
    validate_bundle(bundle.root, _wishes(TARGET, page=True))
    validate_bundle(bundle.root, _wishes(TARGET))
    assert not (bundle.root / "validation" / f"{TARGET}.html").exists()


@pytest.fixture
def damaged(trained):
    """Damage a copy of an engine of the trained bundle and validate it against the graph."""

    def damage(source, change):
        change(copy_engine(trained, source, f"{TARGET}-damaged"))
        opened = Bundle.open(trained.root)
        wishes = _wishes(f"{TARGET}-damaged", against="graph", layers=True, page=True)
        (report,) = validate(opened, wishes).reports
        return report

    return damage


CASES = {
    "weight": (TARGET, lambda f: flip_weight(f, "layers.3.mlp.up_proj.weight")),
    "mask": (TARGET, lambda f: break_mask(f, 3, "shifted")),
    "scale": (f"{TARGET}-int8", lambda f: swap_scales(f, "layers.3.mlp.up_proj.weight")),
}


@pytest.mark.parametrize(
    ("case", "point"),
    [
        ("weight", "layers.3.mlp.up_proj"),
        ("mask", "layers.3.self_attn.Attention"),
        ("scale", "layers.3.mlp.up_proj"),
    ],
)
def test_damage_fails_and_names_output_forward_position_and_values(damaged, case, point):
    report = damaged(*CASES[case])
    assert not report.ok
    assert report.layers is not None
    assert report.layers.first is not None
    assert report.layers.first.point == point
    last = report.failures[-1]
    assert last.startswith(f"{point} at prompt ")
    for row in report.rows:
        if not row.ok:
            assert row.where is not None
            assert row.where.ours != row.where.reference


@pytest.mark.parametrize("case", list(CASES))
def test_the_command_line_ends_with_1_and_names_the_place(trained, capsys, case):
    source, change = CASES[case]
    change(copy_engine(trained, source, f"{TARGET}-damaged"))
    line = ("validate", str(trained.root), "--target", f"{TARGET}-damaged", "--against", "graph")
    assert app.run([*line, "--max-new-tokens", "4", "--bisect", "--no-html"]) == 1
    captured = capsys.readouterr()
    assert f"{TARGET}-damaged disagrees with graph in " in captured.err
    assert re.search(
        r" at prompt \d, forward \d+, position \d+ \[[\d,]+\]: \S+, not ", captured.err
    )
    assert "layers.3." in captured.out
    assert "is the first to leave the tolerance" in captured.out


def test_a_damaged_weight_moves_outputs_and_what_is_committed(damaged):
    report = damaged(TARGET, lambda f: flip_weight(f, "layers.0.mlp.down_proj.weight"))
    broken = {row.output for row in report.rows if not row.ok}
    assert {"top_logits", "logsumexp", "committed", "generation"} <= broken
    assert report.divergence is not None
    assert any(cell.different for cell in report.divergence.ours)


def test_an_engine_that_answers_nan_is_reported_and_not_only_refused(damaged):
    report = damaged(TARGET, lambda folder: set_nan(folder, "norm.weight"))
    assert not report.ok
    assert any("does not generate" in note for note in report.notes)
    broken = {row.output: row for row in report.rows if not row.ok}
    assert broken["generation"].where is not None
    assert broken["generation"].where.ours == "no token"


def test_engines_are_compared_with_each_other(trained):
    wishes = _wishes(f"{TARGET}-int8", against=TARGET)
    (report,) = validate(Bundle.open(trained.root), wishes).reports
    assert report.against == TARGET
    assert report.ok
    assert max(row.difference for row in report.rows) > 0


def test_saved_states_need_no_reference(trained, tmp_path, monkeypatch):
    folder = tmp_path / "states"
    validate_bundle(trained.root, _wishes(TARGET, save_to=folder))
    outputs = str(folder / "outputs.json")

    def never(*arguments):
        raise AssertionError("a reference was loaded")

    monkeypatch.setattr("dlmc.validate.sources.open_reference", never)
    (report,) = validate_bundle(trained.root, _wishes(TARGET, against=outputs)).reports
    assert report.ok
    assert report.against == "torch (outputs.json)"
    assert {row.output for row in report.rows} >= {"committed", "generation", "present"}
    assert "What is 12 + 7?" in report.prompts[0]
    int8 = validate_bundle(trained.root, _wishes(f"{TARGET}-int8", against=outputs))
    assert int8.ok


def test_saved_states_are_not_saved_again(trained, tmp_path):
    folder = tmp_path / "states"
    validate_bundle(trained.root, _wishes(TARGET, save_to=folder))
    wishes = _wishes(TARGET, against=str(folder / "outputs.json"), save_to=tmp_path / "more")
    with pytest.raises(UsageError, match="holds saved states already"):
        validate_bundle(trained.root, wishes)


def test_states_against_the_graph_can_be_saved_without_torch(trained, tmp_path):
    folder = tmp_path / "states"
    wishes = _wishes(f"{TARGET}-int8", against="graph", save_to=folder)
    assert validate_bundle(trained.root, wishes).ok
    assert sorted(path.name for path in folder.iterdir()) == [
        "inputs.json",
        "outputs.json",
        "states.json",
    ]


def test_a_folder_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(BundleError, match="no bundle manifest found"):
        validate_bundle(tmp_path / "nothing")


def test_layers_that_cannot_be_compared_are_a_note_and_with_bisect_an_error(bundle, monkeypatch):
    def refuse(*arguments):
        raise EngineError("there is no way in", "do without")

    monkeypatch.setattr("dlmc.validate.run.compare_layers", refuse)
    (report,) = validate_bundle(bundle.root, _wishes(TARGET, layers=True)).reports
    assert report.ok
    assert report.notes == ("the layers are not compared: there is no way in",)
    with pytest.raises(EngineError, match="no way in"):
        validate_bundle(bundle.root, _wishes(TARGET, bisect=True))


def test_a_report_that_cannot_be_written_is_one_error(bundle, monkeypatch):
    def full(path, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EngineError, match="No space left on device"):
        validate_bundle(bundle.root, _wishes(TARGET))


def test_weights_are_hashed_once_and_only_where_something_reads_them(
    trained, tmp_path, monkeypatch
):
    folder = tmp_path / "states"
    validate_bundle(trained.root, _wishes(TARGET, save_to=folder))
    opened = []
    real = Bundle.open

    def spy(root, **options):
        opened.append(options)
        return real(root, **options)

    monkeypatch.setattr(Bundle, "open", spy)
    validate_bundle(trained.root, _wishes(TARGET, against=str(folder / "outputs.json")))
    validate_bundle(trained.root, _wishes(TARGET))
    assert opened == [{"weights": False}, {"weights": True}]


def test_a_reference_is_closed_whatever_happens(bundle, monkeypatch):
    closed = []

    class Watched:
        def __init__(self, engine):
            self._engine = engine

        def __getattr__(self, name):
            return getattr(self._engine, name)

        def close(self):
            closed.append(True)
            self._engine.close()

    monkeypatch.setattr(
        "dlmc.validate.sources.open_reference",
        lambda bundle, against, profiles: Watched(load_graph(bundle, profiles)),
    )
    monkeypatch.setattr("dlmc.validate.run.compare_states", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        validate_bundle(bundle.root, _wishes(TARGET))
    assert closed


def test_a_validation_is_as_good_as_its_worst_report(damaged):
    bad = damaged(*CASES["weight"])
    assert not Validation((bad,)).ok
    assert Validation(()).ok


def test_an_engine_built_for_other_shapes_is_refused(trained, tmp_path):
    from dlmc.targets.build import build_engine, plan_build
    from dlmc.targets.profiles import ProfileRequest

    root = tmp_path / "other"
    shutil.copytree(trained.root, root)
    shutil.rmtree(root / "engines" / f"{TARGET}-int8")
    folder = tmp_path / "states"
    validate_bundle(root, _wishes(TARGET, save_to=folder))
    build_engine(plan_build(root, TARGET, ProfileRequest(batch=(1,), cache=128)))
    with pytest.raises(UsageError, match="which the engine lacks"):
        validate_bundle(root, _wishes(TARGET, against=str(folder / "outputs.json")))


def test_saved_states_that_contradict_themselves_are_refused(trained, tmp_path):
    folder = tmp_path / "states"
    validate_bundle(trained.root, _wishes(TARGET, save_to=folder))
    states = json.loads((folder / "states.json").read_text())
    for state in states["states"]:
        if state["sampler"]:
            state["sampler"] = {"name": "random", "parameters": {}}
    (folder / "states.json").write_text(json.dumps(states))
    with pytest.raises(UsageError, match=r"outputs\.json and the files beside it do not fit"):
        validate_bundle(trained.root, _wishes(TARGET, against=str(folder / "outputs.json")))
