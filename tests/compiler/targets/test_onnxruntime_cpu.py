import handmade
import onnxruntime
import pytest

from dlmc.targets import onnxruntime_cpu
from dlmc.targets.build import plan_build
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.engines.onnxruntime import OnnxRuntimeEngine
from dlmc_runtime.errors import EngineError
from dlmc_runtime.version import __version__


@pytest.fixture
def plan(tmp_path):
    def make(**request):
        root = tmp_path / "bundle"
        if not root.exists():
            handmade.write(root)
        return plan_build(root, "onnxruntime-cpu", ProfileRequest(**request))

    return make


def test_the_record_says_what_was_made_of_what(plan):
    made = plan(batch=(2,), cache=16)
    record = onnxruntime_cpu.build(made)
    assert (record.target, record.device, record.precision) == ("onnxruntime-cpu", "cpu", "float32")
    assert record.profiles == made.profiles
    assert record.plan == "denoiser.onnx"  # the bundle's own: there is one copy of everything
    assert record.files == {}
    assert record.manifest_sha256 == made.bundle.manifest_sha256
    assert record.versions == {"dlmc": __version__, "onnxruntime": onnxruntime.__version__}


def test_every_profile_is_run_once_and_the_session_closed(plan, monkeypatch):
    ran: list = []
    closed: list = []
    forward, close = OnnxRuntimeEngine.forward, OnnxRuntimeEngine.close

    def watch(self, inputs, cache, stores):
        ran.append((inputs.profile, cache.size, inputs.attention_mask.any(axis=-1).all()))
        return forward(self, inputs, cache, stores)

    monkeypatch.setattr(OnnxRuntimeEngine, "forward", watch)
    monkeypatch.setattr(OnnxRuntimeEngine, "close", lambda self: closed.append(close(self)))
    made = plan(batch=(1, 2), cache=16, prefill=12)
    onnxruntime_cpu.build(made)
    assert [profile for profile, _, _ in ran] == list(made.profiles)
    assert all(size == 16 and visible for _, size, visible in ran)  # no softmax over nothing
    assert len(closed) == 1


def test_a_profile_that_does_not_run_is_an_error(plan):
    made = plan()
    graph = handmade.graph()
    graph.graph.node[0].op_type = "Sub"  # answers for every position, asked or not
    graph.graph.node[0].attribute.pop()
    graph.graph.node[0].input[1] = "input_ids"
    (made.bundle.root / "denoiser.onnx").write_bytes(graph.SerializeToString())
    handmade.seal(made.bundle.root)
    with pytest.raises(EngineError, match="answers other shapes than 1x8 over 24, 1 rows"):
        onnxruntime_cpu.build(plan())
