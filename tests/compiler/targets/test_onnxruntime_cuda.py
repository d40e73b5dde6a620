import handmade
import onnxruntime
import pytest

from dlmc.targets import onnxruntime_cuda
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.lowered import lowered
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.errors import EngineError

TARGET = "onnxruntime-cuda"


@pytest.fixture
def root(tmp_path):
    return handmade.write(tmp_path / "bundle")


def build(root, **options):
    return build_engine(plan_build(root, TARGET, ProfileRequest(), BuildOptions(**options)))


def test_it_is_built_without_a_gpu_and_refused_without_one(root, monkeypatch):
    record = build(root)
    assert record.device == "cuda"
    assert record.requires.library == "onnxruntime-gpu"
    assert record.requires.match == "any"
    assert record.requires.newer_gpus
    assert record.versions["onnxruntime"] == onnxruntime.__version__
    monkeypatch.setattr("dlmc_runtime.preflight.ThisMachine.library", lambda self, name: "1")
    monkeypatch.setattr("dlmc_runtime.engines.cuda.compute_capability", lambda: None)
    with pytest.raises(EngineError, match=r"onnxruntime-cuda needs a GPU \(sm75\), none answers"):
        engines.load(Bundle.open(root), TARGET)


@pytest.mark.parametrize(("provider", "form"), [("cuda", "onnxruntime"), ("tensorrt", "qdq")])
def test_weights_are_quantized_as_the_provider_reads_them(root, monkeypatch, provider, form):
    forms = []

    def watch(plan, folder, form):
        forms.append(form)
        return lowered(plan, folder, form)

    monkeypatch.setattr(onnxruntime_cuda, "lowered", watch)
    record = build(root, execution_provider=provider, cuda_graph=True)
    assert forms == [form]
    assert record.options == {"execution_provider": provider, "cuda_graph": "on", "tf32": "off"}
    assert build(root).options["cuda_graph"] == "off"
