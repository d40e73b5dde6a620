"""Plans are really built here, for GPUs that are not here."""

import json

import handmade
import pytest
import tensorrt_rtx as trt
from proxy import Proxy

from dlmc.export.pipeline import ExportOptions, export_checkpoint
from dlmc.families import detect
from dlmc.recipes import load
from dlmc.synth import Blueprint, Scale, write_checkpoint
from dlmc.targets import TARGETS, tensorrt
from dlmc.targets import tensorrt_rtx as subject
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import plan_dtype, tensor_shape
from dlmc_runtime.engines.tensorrt import NAMES
from dlmc_runtime.errors import EngineError, UsageError

TARGET = "tensorrt-rtx"
TINY = {"llada": "tiny-llada", "sdar": "tiny-sdar"}
FOR = ("sm89", "sm120")


def plan(root, request=None, **options):
    return plan_build(root, TARGET, request or ProfileRequest(), BuildOptions(**options))


class Spy:
    """The library, with a look at what is built, right before it is."""

    def __init__(self):
        self.tensors: dict = {}
        self.shapes: list = []
        self.library = Proxy(trt, Builder=self.builder)

    def builder(self, own_logger):
        real = trt.Builder(own_logger)

        def profile():
            made = real.create_optimization_profile()
            kept: dict = {}
            self.shapes.append(kept)

            def set_shape(name, least, best, most):
                assert least == best == most
                kept[name] = tuple(best)
                made.set_shape(name, least, best, most)

            return Proxy(made, set_shape=set_shape)

        def config():
            made = real.create_builder_config()
            add = made.add_optimization_profile
            return Proxy(made, add_optimization_profile=lambda one: add(one.real))

        def build(network, config, writer):
            self.look(network, config.real)
            return real.build_serialized_network_to_stream(network, config.real, writer)

        return Proxy(
            real,
            create_optimization_profile=profile,
            create_builder_config=config,
            build_serialized_network_to_stream=build,
        )

    def look(self, network, config):
        for kind in ("input", "output"):
            for index in range(getattr(network, f"num_{kind}s")):
                tensor = getattr(network, f"get_{kind}")(index)
                self.tensors[tensor.name] = kind, tensor.dtype, tuple(tensor.shape)
        self.strong = network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        count = config.num_compute_capabilities
        self.capabilities = [config.get_compute_capability(index) for index in range(count)]
        self.tf32 = config.get_flag(trt.BuilderFlag.TF32)
        self.profiles = config.num_optimization_profiles


@pytest.fixture
def spy(monkeypatch):
    made = Spy()
    monkeypatch.setattr(tensorrt, "library", lambda target: made.library)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("family", TINY)
def test_a_plan_has_the_tensors_and_profiles_of_its_bundle(tiny_bundle, spy, family):
    root = tiny_bundle(TINY[family])
    record = build_engine(plan(root, compute_capability=FOR))
    manifest = Bundle.open(root).manifest
    assert spy.strong
    assert not spy.tf32
    assert spy.capabilities == [trt.ComputeCapability.SM89, trt.ComputeCapability.SM120]
    for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
        named = {name: found for name, found in spy.tensors.items() if found[0] == kind}
        assert set(named) == {spec.name for spec in specs}
        for spec in specs:
            _, dtype, shape = named[spec.name]
            assert dtype == getattr(trt.DataType, NAMES[spec.dtype])
            assert len(shape) == len(spec.shape)
            assert all(
                size == wanted for size, wanted in zip(shape, spec.shape, strict=True) if size >= 0
            )
    assert spy.profiles == len(record.profiles) == len(manifest.profiles)
    assert spy.shapes == [
        {spec.name: tensor_shape(spec, profile) for spec in manifest.inputs}
        for profile in manifest.profiles
    ]
    path = root / record.plan
    assert sorted(one.name for one in path.parent.iterdir()) == ["engine.json", "engine.plan"]
    assert path.stat().st_size > 4 * manifest.model.parameters
    assert record.requires.memory > path.stat().st_size


@pytest.mark.slow
def test_guidance_stays_in_float32(tmp_path, repository, spy):
    root, source = tmp_path / "bundle", str(repository / "artifacts" / "tiny-sdar")
    export_checkpoint(ExportOptions(source, root, recipe="tiny/tiny-sdar", variant="guided"))
    request = ProfileRequest(batch=(2,))
    build_engine(plan(root, request, precision="bfloat16", compute_capability=("sm89",)))
    assert spy.tensors["guidance"] == ("input", trt.DataType.FLOAT, (-1,))
    assert spy.tensors["partner"] == ("input", trt.DataType.INT64, (-1,))
    assert spy.tensors["top_logits"][1] == spy.tensors["tempered_entropy"][1] == trt.DataType.FLOAT
    assert all(shapes["partner"] == (2,) for shapes in spy.shapes)


@pytest.mark.slow
def test_profiles_share_one_copy_of_the_weights(tmp_path):
    recipe = load("sdar-1.7b-chat")
    scale = Scale(layers=2, hidden=512, heads=8, kv_heads=4, vocab=8000, positions=64)
    made = Blueprint.of(detect(recipe.config), recipe.config, recipe.generation_config, scale)
    write_checkpoint(made, tmp_path / "checkpoint")
    root = tmp_path / "bundle"
    export_checkpoint(ExportOptions(source=str(tmp_path / "checkpoint"), output=root))
    sizes = [
        (root / build_engine(plan(root, ProfileRequest(batch=batch, cache=32))).plan).stat().st_size
        for batch in ((1,), (1, 2))
    ]
    weights = 4 * Bundle.open(root).manifest.model.parameters
    assert sizes[0] > weights
    assert sizes[1] - sizes[0] < weights / 2  # two profiles more


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_precision_and_quantization_are_those_of_the_graph(
    tiny_bundle, spy, precision, quantization
):
    root = tiny_bundle("tiny-sdar")
    made = plan(
        root,
        ProfileRequest(batch=(1,)),
        precision=precision,
        quantization=quantization,
        compute_capability=("sm89",),
    )
    record = build_engine(made)
    assert (record.precision, record.quantization) == (precision, quantization)
    assert record.cache_dtype == precision
    low = getattr(trt.DataType, NAMES[precision])
    for name, (_, dtype, _) in spy.tensors.items():
        cached = name.startswith(("past_key_values.", "present."))
        assert (dtype == low) == cached
    assert sorted(one.name for one in made.folder.iterdir()) == ["engine.json", "engine.plan"]


@pytest.fixture
def root(tmp_path):
    return handmade.write(tmp_path / "bundle")


def test_the_record_says_what_may_run_the_plan(root):
    named = build_engine(plan(root, compute_capability=FOR))
    assert named.requires.compute_capabilities == FOR
    assert not named.requires.newer_gpus
    assert named.requires.system is None  # such plans run on Linux and Windows
    assert (named.requires.library, named.requires.match) == ("tensorrt-rtx-cu13", "exact")
    assert named.requires.version == trt.__version__ == named.versions["tensorrt-rtx-cu13"]
    assert named.options["tf32"] == "off"
    general = build_engine(plan(root))
    assert general.requires.compute_capabilities == subject.DEFAULT
    assert general.requires.newer_gpus


def test_a_plan_without_a_gpu_is_built_and_refused_with_one_sentence(root, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.engines.cuda.compute_capability", lambda: None)
    record = build_engine(plan(root, compute_capability=("sm89",)))
    bundle = Bundle.open(root)
    with pytest.raises(EngineError, match=r"needs a GPU \(sm89\), none answers here"):
        engines.load(bundle, TARGET)
    assert bundle.engine(TARGET) == record


@pytest.mark.parametrize("name", ["sm90", "SM89", "ampere"])
def test_a_gpu_it_does_not_build_for_lists_those_it_does(root, name):
    with pytest.raises(UsageError, match=rf"does not build for {name}: choose among sm75.*sm121$"):
        build_engine(plan(root, compute_capability=("sm89", name)))
    assert not (root / "engines").exists()


def test_refit_takes_a_gpu(root, monkeypatch):
    monkeypatch.setattr(subject, "compute_capability", lambda: None)
    with pytest.raises(EngineError, match="--refit takes a GPU to build, none answers here"):
        build_engine(plan(root, refit=True))


def test_only_its_own_options_are_heeded(root):
    assert TARGETS[TARGET].options == {"compute_capability", "refit", "log"}
    with pytest.raises(UsageError, match="--timing-cache makes no difference to tensorrt-rtx"):
        plan(root, timing_cache=root / "times")


def test_an_engine_s_record_is_json_of_plain_words(root):
    record = build_engine(plan(root))
    text = json.loads((root / record.plan).with_name("engine.json").read_text())
    assert text["target"] == TARGET
    assert text["device"] == "cuda"
    assert plan_dtype(Bundle.open(root).manifest.inputs[3], record.cache_dtype) == "float32"


def test_turing_has_no_bfloat16(tmp_path):
    options = BuildOptions(precision="bfloat16", compute_capability=("sm75", "sm89"))
    plan = plan_build(
        handmade.write(tmp_path / "bundle"), "tensorrt-rtx", ProfileRequest(), options
    )
    with pytest.raises(UsageError, match="sm75 has no bfloat16: build with --precision f16"):
        build_engine(plan)
    assert not plan.folder.exists()
