"""What TensorRT and TensorRT for RTX share, built with the latter, which needs no GPU."""

from pathlib import Path
from types import SimpleNamespace

import handmade
import pytest
import tensorrt_rtx as trt
from proxy import Proxy

from dlmc.targets import tensorrt as subject
from dlmc.targets.build import build_engine, plan_build
from dlmc.targets.options import BuildOptions
from dlmc.targets.profiles import ProfileRequest
from dlmc_runtime.engines.tensorrt import Log
from dlmc_runtime.errors import EngineError, UsageError
from dlmc_runtime.preflight import ThisMachine

TARGET = "tensorrt"


@pytest.fixture
def root(tmp_path):
    return handmade.write(tmp_path / "bundle")


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    """Let planning find TensorRT installed; `here` lends its module."""
    version = ThisMachine.library

    def library(self, distribution):
        return "11.1.0" if distribution == TARGET else version(self, distribution)

    monkeypatch.setattr(ThisMachine, "library", library)


@pytest.fixture
def here(monkeypatch):
    """A machine with a GPU and TensorRT, as far as building can tell."""
    monkeypatch.setattr(subject, "compute_capability", lambda: "sm89")
    monkeypatch.setattr(subject, "library", lambda target: trt)


def plan(root, **options):
    return plan_build(root, TARGET, ProfileRequest(), BuildOptions(**options))


def test_a_plan_is_for_this_gpu_and_version(here, root):
    record = build_engine(plan(root))
    needs = record.requires
    assert needs.compute_capabilities == ("sm89",)
    assert not needs.newer_gpus
    assert (needs.library, needs.match) == ("tensorrt", "exact")
    assert needs.version == trt.__version__
    assert needs.system is not None
    assert record.plan == "engines/tensorrt/engine.plan"
    assert record.options == dict.fromkeys(
        ("tf32", "refit", "version_compatible", "hardware_compatible"), "off"
    )


def test_it_builds_only_where_a_gpu_is(root, monkeypatch):
    monkeypatch.setattr(subject, "compute_capability", lambda: None)
    with pytest.raises(EngineError, match="builds only on the GPU that will run the engine"):
        build_engine(plan(root))
    assert not (root / "engines").exists()


@pytest.fixture
def asked(here, monkeypatch):
    """What `build` would ask `build_plan` for."""
    found = SimpleNamespace()

    def build_plan(plan, folder, configure, **needs):
        found.needs, found.flags = needs, []
        config = SimpleNamespace(set_flag=found.flags.append, hardware_compatibility_level=None)
        configure(trt, config)
        found.level = config.hardware_compatibility_level
        return found

    monkeypatch.setattr(subject, "build_plan", build_plan)
    return found


def test_other_gpus_and_versions_are_let_in_on_request(asked, root, tmp_path):
    subject.build(plan(root), tmp_path)
    assert asked.needs["match"] == "exact"
    assert asked.flags == []
    assert asked.level is None
    subject.build(plan(root, version_compatible=True, hardware_compatible=True), tmp_path)
    assert asked.needs["match"] == "later"
    assert asked.needs["compute_capabilities"] == ("sm80",)
    assert asked.needs["newer_gpus"]
    assert asked.level == trt.HardwareCompatibilityLevel.AMPERE_PLUS
    # A plan never carries a runtime of its own, which would be host code.
    assert asked.flags == [
        trt.BuilderFlag.VERSION_COMPATIBLE,
        trt.BuilderFlag.EXCLUDE_LEAN_RUNTIME,
    ]


def test_an_old_gpu_makes_no_hardware_compatible_plan(asked, root, tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "compute_capability", lambda: "sm75")
    with pytest.raises(UsageError, match="--hardware-compatible begins with sm80: this GPU is sm7"):
        subject.build(plan(root, hardware_compatible=True), tmp_path)


def test_refit_and_the_log_are_set_in_the_configuration(root, tmp_path):
    builder = trt.Builder(trt.Logger())
    config = subject._config(trt, builder, plan(root))
    assert not config.get_flag(trt.BuilderFlag.REFIT)
    assert not config.get_flag(trt.BuilderFlag.TF32)
    assert config.profiling_verbosity == trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    config = subject._config(trt, builder, plan(root, refit=True, log=tmp_path / "log"))
    assert config.get_flag(trt.BuilderFlag.REFIT)
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert config.num_optimization_profiles == len(handmade.PROFILES)


def test_attention_may_be_built_of_plain_layers(tiny_bundle):
    network = trt.Builder(trt.Logger()).create_network(0)
    parser = trt.OnnxParser(network, trt.Logger())
    assert parser.parse_from_file(str(tiny_bundle("tiny-sdar") / "denoiser.onnx"))

    def attentions():
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            if layer.type == trt.LayerType.ATTENTION_INPUT:
                layer.__class__ = trt.IAttentionInputLayer
                yield layer.attention.decomposable

    assert list(attentions()) == [False] * 6
    subject.allow_plain_attention(trt, network)
    assert list(attentions()) == [True] * 6


def test_a_detailed_log_is_written_on_request(here, root, tmp_path):
    build_engine(plan(root, log=tmp_path / "log"))
    lines = (tmp_path / "log").read_text().splitlines()
    assert any(line.startswith("[VERBOSE] ") for line in lines)
    with pytest.raises(EngineError, match=r"--log .*nowhere/log cannot be written \(No such file"):
        build_engine(plan(root, log=tmp_path / "nowhere" / "log"))
    if Path("/dev/full").exists():
        with pytest.raises(EngineError, match=r"--log /dev/full cannot be written \(No space"):
            build_engine(plan(root, log=Path("/dev/full")))


def test_a_graph_that_the_library_refuses_is_one_sentence(here, root, capfd):
    graph = handmade.graph()
    graph.graph.node[0].op_type = "NoSuchOperator"
    rewrite(root, graph)
    with pytest.raises(EngineError, match=r"cannot read .*denoiser\.onnx \(.*NoSuchOperator") as e:
        build_engine(plan(root))
    assert "\n" not in str(e.value)
    assert not (root / "engines").exists()
    assert capfd.readouterr().out == ""


def rewrite(root, graph):
    (root / "denoiser.onnx").write_bytes(graph.SerializeToString())
    handmade.seal(root)


def test_a_graph_must_be_what_its_manifest_says(here, root):
    rewrite(root, handmade.graph(temperature="int64"))
    with pytest.raises(EngineError, match="disagree about temperature"):
        build_engine(plan(root))
    missing = handmade.graph()
    del missing.graph.output[-1]
    rewrite(root, missing)
    with pytest.raises(EngineError, match=r"disagree about present\.0\.value"):
        build_engine(plan(root))


def test_a_graph_that_reads_other_files_is_not_parsed(here, root, monkeypatch):
    monkeypatch.setattr(subject, "_write", lambda *_: pytest.fail("was parsed"))
    rewrite(root, handmade.graph("../secret"))
    with pytest.raises(Exception, match=r"reads .*secret"):
        build_engine(plan(root))


def test_what_the_library_cannot_build_is_one_sentence(here, root, monkeypatch):
    def unmark(trt, network):
        while network.num_outputs:
            network.unmark_output(network.get_output(0))

    monkeypatch.setattr(subject, "allow_plain_attention", unmark)
    with pytest.raises(
        EngineError, match=r"cannot build tensorrt \(.*at least one output.*\): --log FILE"
    ):
        build_engine(plan(root))


def test_a_full_disk_is_raised_when_the_library_is_done(tmp_path):
    writer = subject._writer(trt, Path("/dev/full"))
    assert writer.write(b"x" * (1 << 16)) == 0
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    writer = subject._writer(trt, tmp_path / "plan")
    assert writer.write(b"x" * 10) == 10
    writer.close()
    assert (tmp_path / "plan").read_bytes() == b"x" * 10


class Config:
    """A configuration that takes a cache or does not; without a GPU the library has none."""

    def __init__(self, fits=True):
        self.fits, self.given = fits, None

    def create_timing_cache(self, data):
        self.given = data
        return object()

    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        return self.fits


def test_a_timing_cache_is_read_and_replaced(tmp_path):
    path, config = tmp_path / "times", Config()
    subject._start_from(config, path, Log())
    assert config.given == b""
    subject._update(path, b"measured")
    subject._start_from(config, path, Log())
    assert config.given == b"measured"
    assert [one.name for one in tmp_path.iterdir()] == ["times"]


def test_a_timing_cache_that_does_not_fit_is_one_sentence(tmp_path):
    with pytest.raises(EngineError, match="does not fit this library and GPU"):
        subject._start_from(Config(fits=False), tmp_path / "times", Log())
    with pytest.raises(EngineError, match=r"cannot be read \(Is a directory\)"):
        subject._start_from(Config(), tmp_path, Log())
    with pytest.raises(EngineError, match=r"cannot be written \(No such file or directory\)"):
        subject._update(tmp_path / "nowhere" / "times", b"")


def test_the_timing_cache_goes_through_a_build(here, root, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(subject, "_start_from", lambda config, path, log: seen.append(path))
    monkeypatch.setattr(subject, "_update", lambda path, data: seen.append(data))

    def builder(own_logger):
        real = trt.Builder(own_logger)
        cache = SimpleNamespace(serialize=lambda: b"times")

        def config():
            return Proxy(real.create_builder_config(), get_timing_cache=lambda: cache)

        def build(network, config, writer):
            return real.build_serialized_network_to_stream(network, config.real, writer)

        return Proxy(real, create_builder_config=config, build_serialized_network_to_stream=build)

    monkeypatch.setattr(subject, "library", lambda target: Proxy(trt, Builder=builder))
    build_engine(plan(root, timing_cache=tmp_path / "times"))
    assert seen == [tmp_path / "times", b"times"]
