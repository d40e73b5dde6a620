import pytest

from dlmc.targets.build import memory, plan_build
from dlmc.targets.lowered import lowered
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest


@pytest.fixture
def plan(tiny_bundle):
    root = tiny_bundle("tiny-sdar")

    def make(**options):
        return plan_build(root, "openvino-cpu", ProfileRequest(), BuildOptions(**options))

    return make


def test_the_bundle_s_own_graph_needs_no_copy(plan, tmp_path):
    made = plan()
    graph = lowered(made, tmp_path / "engine", "qdq")
    assert (graph.plan, graph.cache_dtype) == (None, "float32")
    assert graph.path == made.bundle.root / "denoiser.onnx"
    assert not (tmp_path / "engine").exists()
    size = sum(path.stat().st_size for path in made.bundle.root.glob("weights/*"))
    assert graph.weights == size
    largest = max(sum(memory(made.bundle, profile).values()) for profile in made.profiles)
    assert graph.memory == size + largest


@pytest.mark.parametrize(
    ("options", "dtype", "most"),
    [
        ({"precision": "bfloat16"}, "bfloat16", 1.0),
        ({"quantization": "int8"}, "float32", 0.6),
        ({"precision": "bfloat16", "quantization": "int4"}, "bfloat16", 0.4),
    ],
)
def test_another_precision_gets_a_graph_of_its_own(plan, tmp_path, options, dtype, most):
    made = plan(**options)
    graph = lowered(made, tmp_path, "qdq")
    assert (graph.plan, graph.cache_dtype) == ("denoiser.onnx", dtype)
    assert graph.path == tmp_path / "denoiser.onnx"
    own = sum(path.stat().st_size for path in (tmp_path / "weights").iterdir())
    assert graph.weights == own
    stored = sum(path.stat().st_size for path in made.bundle.root.glob("weights/*"))
    assert own <= most * stored
