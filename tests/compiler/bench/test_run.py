import json
import shutil
from dataclasses import replace

import pytest

from dlmc.bench import isolated, memory, rates, run
from dlmc.bench.memory import Footprint
from dlmc.bench.roofline import Rates
from dlmc.bench.run import BenchOptions, bench_bundle
from dlmc_runtime.errors import BundleError, EngineError, RequestError, UsageError

QUICK = BenchOptions(max_new_tokens=16, repeats=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure little, and start no other process."""
    monkeypatch.setattr(run, "_ALONE_REPEATS", 3)
    monkeypatch.setattr(rates, "measure", lambda *_: Rates(1e11, 1e10, "as told"))
    monkeypatch.setattr(memory, "measure", lambda *_: Footprint(2, 3, 1, 9, 0.5))


def test_every_part_of_a_report(root):
    said: list[str] = []
    report = bench_bundle(root, QUICK, said.append)
    (engine,) = report.contenders
    assert report.bundle == root.name
    assert (engine.name, engine.precision, engine.quantization) == (
        "onnxruntime-cpu",
        "float32",
        "none",
    )
    assert engine.speed.seconds.n == report.workload.repeats == 2
    assert engine.footprint == Footprint(2, 3, 1, 9, 0.5)
    assert {phase.kind for phase in engine.phases} >= {"denoise"}
    for phase in engine.phases:
        assert phase.ratio is None or phase.ratio > 0
        assert phase.floor is not None
    assert engine.faster is None
    assert engine.scores == ()
    assert "answer 2 of 2" in said


def test_weights_are_counted_once(root):
    (engine,) = bench_bundle(root, QUICK).contenders
    manifest = json.loads((root / "manifest.json").read_text())
    assert engine.weights == 4 * manifest["model"]["parameters"]


def test_beside_torch(root):
    engine, torch = bench_bundle(root, replace(QUICK, torch=True)).contenders
    assert torch.name == "torch float32"
    assert torch.speed.tokens == engine.speed.tokens
    assert torch.speed.forwards == engine.speed.forwards
    assert engine.faster == pytest.approx(
        engine.speed.useful_per_second.median / torch.speed.useful_per_second.median
    )
    assert all(phase.profile is None and phase.alone is None for phase in torch.phases)


def test_arbitrary_ids_run_to_the_end(root):
    options = replace(QUICK, prompt_tokens=20, ignore_eos=False)
    report = bench_bundle(root, options)
    assert report.workload.prompt_tokens == 20
    assert report.workload.ignore_eos
    assert report.contenders[0].speed.tokens == 16


def test_a_prompt_may_end_early(root):
    report = bench_bundle(root, BenchOptions(prompt="4+5=?", repeats=1))
    assert not report.workload.ignore_eos
    assert report.contenders[0].speed.tokens < report.workload.max_new_tokens


def test_the_sampler_is_the_bundles_with_changes(root):
    options = replace(QUICK, sampler=lambda own: replace(own, steps=2, threshold=None))
    report = bench_bundle(root, options)
    assert report.workload.sampler["steps"] == report.workload.steps == 2


def test_tasks_of_a_file_or_of_the_bundle(root, tmp_path):
    line = json.dumps({"prompt": "sort 3 1 2 5 4", "answer": "1 2 3 4 5"})
    (tmp_path / "asked.jsonl").write_text(line)
    (engine,) = bench_bundle(root, replace(QUICK, tasks=tmp_path / "asked.jsonl")).contenders
    assert [(one.asked, one.exact) for one in engine.scores] == [(1, 1)]
    own = shutil.copytree(root, tmp_path / "own")
    (own / "validation").mkdir(exist_ok=True)
    (own / "validation" / "tasks.jsonl").write_text(f"{line}\n{line}")
    (engine,) = bench_bundle(own, QUICK).contenders
    assert [(one.asked, one.exact) for one in engine.scores] == [(2, 2)]


def test_an_engine_named_twice_is_measured_once(root):
    options = replace(QUICK, targets=("onnxruntime-cpu", "onnxruntime-cpu"))
    assert len(bench_bundle(root, options).contenders) == 1


def test_an_unknown_target(root):
    with pytest.raises(UsageError, match="no target is called 'abacus': choose one of onnx"):
        bench_bundle(root, replace(QUICK, targets=("abacus",)))


def test_a_target_that_was_not_built(root):
    with pytest.raises(BundleError, match="no engine for openvino-cpu"):
        bench_bundle(root, replace(QUICK, targets=("openvino-cpu",)))


def test_no_engines(root, tmp_path):
    bare = shutil.copytree(root, tmp_path / "bare", ignore=shutil.ignore_patterns("engines"))
    with pytest.raises(BundleError, match=r"holds no engine that runs here \(built: none\)"):
        bench_bundle(bare, QUICK)


def test_engines_that_do_not_run_here_are_left_out(root, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.preflight.obstacle", lambda record: ("no", "go away"))
    with pytest.raises(BundleError, match=r"\(built: onnxruntime-cpu\)"):
        bench_bundle(root, QUICK)


def test_an_engine_that_is_named_must_run_here(root, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.preflight.obstacle", lambda *_: ("it is too large", "wait"))
    with pytest.raises(EngineError, match="it is too large: wait"):
        bench_bundle(root, replace(QUICK, targets=("onnxruntime-cpu",)))


def test_tasks_are_read_before_anything_is_measured(root, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "measure", lambda *_: pytest.fail("it was measured"))
    with pytest.raises(UsageError, match="cannot be read"):
        bench_bundle(root, replace(QUICK, tasks=tmp_path / "none.jsonl"))


def test_a_request_that_does_not_fit(root):
    with pytest.raises(RequestError):
        bench_bundle(root, replace(QUICK, prompt_tokens=400, max_new_tokens=100))


def test_the_loops_own_kinds_are_timed_alone(root, monkeypatch):
    seen = []

    def measure(engine, use, repeats, budget):
        seen.append(use.kind)
        return [0.5]

    monkeypatch.setattr(isolated, "measure", measure)
    (engine,) = bench_bundle(root, QUICK).contenders
    assert seen == [phase.kind for phase in engine.phases if phase.alone is not None]
