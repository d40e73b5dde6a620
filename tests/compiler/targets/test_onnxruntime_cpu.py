from contextlib import closing

import handmade
import onnx_ir as ir
import onnxruntime
import pytest

from dlmc.targets import onnxruntime_cpu
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle

TARGET = "onnxruntime-cpu"


def planned(root, **options):
    return plan_build(root, TARGET, ProfileRequest(batch=(1,)), BuildOptions(**options))


@pytest.fixture
def plan(tmp_path):
    return planned(handmade.write(tmp_path / "bundle"))


def test_any_version_on_any_system_may_run_it(plan, tmp_path):
    built = onnxruntime_cpu.build(plan, tmp_path)
    assert (built.device, built.cache_dtype) == ("cpu", "float32")
    assert built.versions == {"onnxruntime": onnxruntime.__version__}
    needs = built.requires
    assert (needs.library, needs.match, needs.system) == ("onnxruntime", "any", None)
    assert needs.memory > sum(path.stat().st_size for path in plan.bundle.root.rglob("weights/*"))


def test_weights_are_links_to_those_of_the_bundle(plan):
    record = build_engine(plan)
    weights = plan.bundle.root / handmade.WEIGHTS
    assert (plan.folder / handmade.WEIGHTS).samefile(weights)
    assert record.plan == f"engines/{TARGET}/denoiser.onnx"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "operators"),
    [
        ("none", {"Gemm"}),
        ("int8", {"MatMulNBits"}),
        ("int4", {"MatMulNBits"}),
        ("w8a8", {"QuantizeLinear", "DequantizeLinear"}),
    ],
)
def test_the_plan_has_what_onnx_runtime_runs_best(tiny_bundle, quantization, operators):
    plan = planned(tiny_bundle("tiny-sdar"), quantization=quantization)
    record = build_engine(plan)
    bundle = Bundle.open(plan.bundle.root)
    found = {node.op_type for node in ir.load(bundle.root / record.plan).graph}
    assert operators <= found
    with closing(engines.load(bundle, plan.name)) as engine:
        assert engine.profiles == plan.profiles
    linked = {name for name in record.files if name.endswith("model.safetensors")}
    assert bool(linked) == (quantization == "none")  # else most of it would not be read
