import handmade
import onnxruntime
import pytest

from dlmc.targets import onnxruntime_cpu
from dlmc.targets.build import plan_build
from dlmc.targets.profiles import ProfileRequest


@pytest.fixture
def plan(tmp_path):
    root = handmade.write(tmp_path / "bundle")
    return plan_build(root, "onnxruntime-cpu", ProfileRequest(batch=(2,), cache=16))


def test_the_bundle_s_own_graph_is_the_plan(plan, tmp_path):
    built = onnxruntime_cpu.build(plan, tmp_path)
    assert built.plan is None  # there is one copy of everything
    assert (built.device, built.cache_dtype) == ("cpu", "float32")
    assert built.versions == {"onnxruntime": onnxruntime.__version__}
    assert not [path for path in tmp_path.iterdir() if path.name != "bundle"]


def test_any_version_on_any_system_may_run_it(plan, tmp_path):
    needs = onnxruntime_cpu.build(plan, tmp_path).requires
    assert (needs.library, needs.match, needs.system) == ("onnxruntime", "any", None)
    assert needs.memory > sum(path.stat().st_size for path in plan.bundle.root.rglob("weights/*"))
