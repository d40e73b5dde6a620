import json
import shutil
from contextlib import closing

import handmade
import pytest

from dlmc.targets import TARGETS, build
from dlmc.targets.build import build_engine, memory, plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines, preflight
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engine_record import parse_engine_record
from dlmc_runtime.engines.base import Inputs
from dlmc_runtime.engines.onnxruntime import OnnxRuntimeEngine
from dlmc_runtime.errors import BundleError, EngineError, UsageError
from dlmc_runtime.manifest import Profile

TARGET = "onnxruntime-cpu"


@pytest.fixture
def root(tmp_path):
    return handmade.write(tmp_path / "bundle")


def test_every_target_has_an_engine_that_loads_it():
    assert set(TARGETS) == set(engines.ENGINES)


def test_a_plan_writes_nothing(root):
    before = sorted(root.rglob("*"))
    plan = plan_build(root, TARGET, ProfileRequest(batch=(2,)))
    assert plan.output == root / "engines" / TARGET / "engine.json"
    assert {profile.batch for profile in plan.profiles} == {2}
    assert sorted(root.rglob("*")) == before


def test_a_build_leaves_a_record_that_fits_the_bundle(root):
    record = build_engine(plan_build(root, TARGET, ProfileRequest()))
    text = (root / "engines" / TARGET / "engine.json").read_bytes()
    assert parse_engine_record(text) == record
    bundle = Bundle.open(root)
    assert bundle.engine(TARGET) == record
    assert record.profiles == bundle.manifest.profiles
    own = {path.relative_to(root).as_posix() for path in (root / "engines").rglob("*.*")}
    assert own == {f"engines/{TARGET}/engine.json", *record.files}


def test_a_build_replaces_the_one_before(root):
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    build_engine(plan_build(root, TARGET, ProfileRequest(batch=(2,))))
    assert {profile.batch for profile in Bundle.open(root).engine(TARGET).profiles} == {2}


def test_what_cannot_be_built_is_refused_by_the_plan(root, tmp_path):
    with pytest.raises(UsageError, match="no target is called 'abacus': choose one of onnx"):
        plan_build(root, "abacus", ProfileRequest())
    with pytest.raises(BundleError, match="no bundle manifest found at"):
        plan_build(tmp_path / "nothing", TARGET, ProfileRequest())
    with pytest.raises(BundleError, match="has no weights"):
        plan_build(handmade.seal(root, weights=()), TARGET, ProfileRequest())
    (root / "denoiser.onnx").write_bytes(b"")
    with pytest.raises(BundleError, match=r"denoiser\.onnx in .* has 0 bytes"):
        plan_build(root, TARGET, ProfileRequest())


def test_a_graph_that_does_not_load_leaves_no_record(root):
    (root / "denoiser.onnx").write_bytes(b"\x08\x0a")
    plan = plan_build(handmade.seal(root), TARGET, ProfileRequest())
    with pytest.raises(BundleError, match=r"denoiser\.onnx cannot be lowered \(the graph has"):
        build_engine(plan)
    assert not (root / "engines").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(root):
    plan = plan_build(root, TARGET, ProfileRequest())
    (root / "engines").write_text("in the way")
    with pytest.raises(EngineError, match=r"engine\.json cannot be written"):
        build_engine(plan)
    assert (root / "engines").read_text() == "in the way"


@pytest.mark.parametrize("step", ["write_text", "mkdir"])
def test_a_full_disk_leaves_the_old_record_or_none(root, monkeypatch, step):
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    plan = plan_build(root, TARGET, ProfileRequest(batch=(2,)))
    before = sorted(plan.folder.rglob("*"))

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(f"pathlib.Path.{step}", full)
        with pytest.raises(EngineError, match=r"No space left on device.*make room"):
            build_engine(plan)
    assert sorted(plan.folder.rglob("*")) == before
    assert json.loads(plan.output.read_text())["profiles"][0]["batch"] == 1
    shutil.rmtree(root / "engines")
    with monkeypatch.context() as patched:
        patched.setattr(f"pathlib.Path.{step}", full)
        with pytest.raises(EngineError):
            build_engine(plan)
    assert not plan.output.exists()


def test_memory_is_what_the_runtime_allocates(root):
    bundle = Bundle.open(root)
    profile = Profile(batch=3, block=8, cache=24, rows=5)
    found = memory(bundle, profile)
    cache = HostCache(bundle.manifest.model, profile.batch, profile.cache)
    assert found["cache"] == sum(past.nbytes for past in cache.past.values())
    assert found["inputs"] == sum(array.nbytes for array in Inputs(profile).arrays().values())
    inputs = Inputs(profile)
    inputs.attention_mask[:] = True
    with engines_of(root) as engine:
        out = engine.forward(inputs, cache, [])
    assert found["outputs"] == sum(value.nbytes for value in out.arrays().values())
    assert found["present"] == 2 * 4 * 3 * 8  # key and value, float32, of one head of one number
    assert found["logits"] == 4 * 3 * 5 * 64


def engines_of(root):
    build_engine(plan_build(root, TARGET, ProfileRequest()))
    return closing(engines.load(Bundle.open(root), TARGET))


def test_every_profile_is_run_once_and_the_session_closed(root, monkeypatch):
    ran: list = []
    closed: list = []
    forward, close = OnnxRuntimeEngine.forward, OnnxRuntimeEngine.close

    def watch(self, inputs, cache, stores):
        ran.append((inputs.profile, cache.size, inputs.attention_mask.any(axis=-1).all()))
        return forward(self, inputs, cache, stores)

    monkeypatch.setattr(OnnxRuntimeEngine, "forward", watch)
    monkeypatch.setattr(OnnxRuntimeEngine, "close", lambda self: closed.append(close(self)))
    plan = plan_build(root, TARGET, ProfileRequest(batch=(1, 2), cache=16, prefill=12))
    build_engine(plan)
    assert [profile for profile, _, _ in ran] == list(plan.profiles)
    assert all(size == 16 and visible for _, size, visible in ran)  # no softmax over nothing
    assert len(closed) == 1


def test_a_profile_that_does_not_run_is_an_error(root):
    graph = handmade.graph()
    graph.graph.node[0].op_type = "Sub"  # answers for every position, asked or not
    graph.graph.node[0].attribute.pop()
    graph.graph.node[0].input[1] = "input_ids"
    (root / "denoiser.onnx").write_bytes(graph.SerializeToString())
    plan = plan_build(handmade.seal(root), TARGET, ProfileRequest())
    with pytest.raises(EngineError, match="answers other shapes than 1x8 over 24, 1 rows"):
        build_engine(plan)
    assert not plan.output.exists()


def test_an_engine_that_does_not_fit_this_machine_is_not_tried(root, monkeypatch):
    monkeypatch.setattr(preflight, "obstacle", lambda record: ("no such library", "install it"))
    monkeypatch.setattr(OnnxRuntimeEngine, "__init__", lambda *_: pytest.fail("was loaded"))
    assert build_engine(plan_build(root, TARGET, ProfileRequest())).target == TARGET


def test_a_missing_library_is_found_before_the_work_begins(root, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(preflight.ThisMachine, "library", lambda *_: None)
        with pytest.raises(EngineError, match=r"needs openvino, .*: pip install"):
            plan_build(root, "openvino-cpu", ProfileRequest())
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match=r"needs onnx-ir, .*: pip install 'dlmc\[compile\]'"):
        plan_build(root, TARGET, ProfileRequest())


def test_shapes_beyond_any_machine_are_refused(root):
    huge = Profile(batch=1 << 20, block=1 << 10, cache=1 << 10, rows=1 << 10)
    path = root / "manifest.json"
    data = json.loads(path.read_text())
    data["profiles"] = [huge.model_dump()]
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="needs more memory than any machine has: give smaller"):
        plan_build(root, TARGET, ProfileRequest())
