"""Every precision and quantization, and what the runtimes that are here answer to them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from processor import HAS_BFLOAT16
from safetensors.numpy import load_file

from dlmc.checkpoint.safetensors_header import read_header
from dlmc.lowering.lower import BLOCK_SIZES, Lowering, lower
from dlmc.lowering.streamed import rows
from dlmc.lowering.write import LOWERED
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.cache import HostCache
from dlmc_runtime.engines.base import Inputs
from dlmc_runtime.errors import BundleError, CheckpointError, DlmcError, UsageError
from dlmc_runtime.manifest import Profile

State = Mapping[str, np.ndarray]
Answers = list[dict[str, np.ndarray]]

PRECISIONS = ("float32", "float16", "bfloat16")
FORMS = (("none", "qdq"), ("int8", "qdq"), ("int4", "qdq"), ("w8a8", "qdq"))
OF_ONNXRUNTIME = tuple((quantization, "onnxruntime") for quantization, _ in FORMS)
EVERY = [(p, q, form) for p in PRECISIONS for q, form in (*FORMS, *OF_ONNXRUNTIME)]

# Root mean square of what the log-probability of the best token may be off, over all states. The
# tiny checkpoints have 128 channels, which leaves rounding little to average over.
LIMITS = {"none": 0.02, "int8": 0.05, "int4": 0.3, "w8a8": 0.15}


class Case:
    """A bundle with its states, and what its own graph answers to them."""

    def __init__(self, bundle: Bundle, states: Sequence[State]) -> None:
        self.bundle, self.states = bundle, states
        self.wanted = run_onnxruntime(bundle.root / "denoiser.onnx", states)

    def lower(self, how: Lowering, folder: Path) -> Path:
        needed = self.states if how.quantization == "w8a8" else None
        return folder / lower(self.bundle, how, folder, needed).graph

    def error(self, found: Answers) -> float:
        """Return how far the log-probabilities of the best tokens are off (RMS, nats)."""
        pairs = [(sureness(a), sureness(b)) for a, b in zip(found, self.wanted, strict=True)]
        squares = [np.mean((a - b) ** 2) for a, b in pairs]
        return float(np.sqrt(np.mean(squares)))

    def agreement(self, found: Answers) -> float:
        """Return at how many positions the best token is the same."""
        pairs = zip(found, self.wanted, strict=True)
        same = [a["top_ids"][..., 0] == b["top_ids"][..., 0] for a, b in pairs]
        return float(np.mean(same))


def sureness(answer: dict[str, np.ndarray]) -> np.ndarray:
    sure: np.ndarray = answer["top_logits"][..., 0] - answer["logsumexp"]
    return sure


@pytest.fixture(scope="session")
def case(llada, llada_states) -> Case:
    return Case(llada, llada_states)


@pytest.fixture(scope="session")
def cached(sdar, sdar_states) -> Case:
    """One whose graph has a cache."""
    small = [state for state in sdar_states if state["input_ids"].shape[1] == 8]
    return Case(sdar, small)


def run_onnxruntime(graph: Path, states: Sequence[State]) -> Answers:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    low = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    names = [value.name for value in session.get_outputs()]
    feeds = [
        {name: v.astype(np.float16) if name in low else v for name, v in state.items()}
        for state in states
    ]
    return [dict(zip(names, session.run(None, one), strict=True)) for one in feeds]


def run_openvino(graph: Path, states: Sequence[State]) -> Answers:
    """Run with the hint that leaves every type as the graph has it."""
    openvino = pytest.importorskip("openvino")
    compiled = openvino.Core().compile_model(
        str(graph), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}
    )
    request = compiled.create_infer_request()
    answers = []
    for state in states:
        for port in compiled.inputs:
            # An input may have taken over the name of a reshape that did nothing.
            (name,) = port.names & state.keys()
            request.set_tensor(name, _tensor(openvino, port, state[name]))
        request.infer()
        found = {port.any_name: request.get_tensor(port.any_name) for port in compiled.outputs}
        # bfloat16 comes as the bits of another type.
        answers.append(
            {
                name: tensor.data.view(ml_dtypes.bfloat16).copy()
                if tensor.element_type == openvino.Type.bf16
                else tensor.data.copy()
                for name, tensor in found.items()
            }
        )
    return answers


def _tensor(openvino: Any, port: Any, values: np.ndarray) -> Any:
    tensor = openvino.Tensor(port.element_type, list(values.shape))
    if port.element_type == openvino.Type.bf16:
        values = values.astype(ml_dtypes.bfloat16).view(tensor.data.dtype)
    tensor.data[...] = values
    return tensor


def weight(graph: Path, name: str) -> np.ndarray:
    """Read an initializer, whose file may have several names."""
    tensor = ir.load(graph).graph.initializers[name].const_value
    assert tensor is not None
    return np.concatenate(list(rows(tensor)))


@pytest.mark.parametrize(("precision", "quantization", "form"), EVERY)
def test_every_choice_makes_a_graph_that_onnx_accepts(
    cached, tmp_path, precision, quantization, form
):
    graph = cached.lower(Lowering(precision, quantization, form), tmp_path)
    proto = onnx.load(graph, load_external_data=False)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    original = onnx.load(cached.bundle.root / "denoiser.onnx", load_external_data=False)
    for part in ("input", "output"):
        ours, theirs = (getattr(one.graph, part) for one in (proto, original))
        assert [value.name for value in ours] == [value.name for value in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.type.tensor_type.shape == b.type.tensor_type.shape
            if not a.name.startswith(("past", "present")):
                assert a.type == b.type
    domains = {node.domain for node in proto.graph.node}
    own = form == "onnxruntime" and quantization in ("int8", "int4")
    assert domains == ({"", "com.microsoft"} if own else {""})
    assert not proto.functions


@pytest.mark.parametrize(("quantization", "form"), [*FORMS, *OF_ONNXRUNTIME])
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("which", ["case", "cached"])
def test_onnxruntime_answers_as_the_bundles_graph_does(
    request, tmp_path, which, precision, quantization, form
):
    chosen = request.getfixturevalue(which)
    graph = chosen.lower(Lowering(precision, quantization, form), tmp_path)
    found = run_onnxruntime(graph, chosen.states)
    assert chosen.error(found) < LIMITS[quantization]
    assert chosen.agreement(found) > 0.9


@pytest.mark.parametrize(
    ("precision", "quantization"),
    [(p, q) for p in PRECISIONS for q, _ in FORMS if (p, q) != ("bfloat16", "w8a8")],
)
@pytest.mark.parametrize("which", ["case", "cached"])
def test_openvino_answers_as_the_bundles_graph_does(
    request, tmp_path, which, precision, quantization
):
    chosen = request.getfixturevalue(which)
    graph = chosen.lower(Lowering(precision, quantization), tmp_path)
    found = run_openvino(graph, chosen.states)
    assert chosen.error(found) < LIMITS[quantization]
    assert chosen.agreement(found) > 0.9


def logits_of(answer: dict[str, np.ndarray]) -> np.ndarray:
    """Return the logits [B,R,V-1] of a head that hands them all out, in the order of ids."""
    order = np.argsort(answer["top_ids"], axis=-1)
    return np.take_along_axis(answer["top_logits"], order, axis=-1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_guidance_combines_logits_without_rounding_them(guided, tmp_path, precision, quantization):
    graph = tmp_path / lower(guided, Lowering(precision, quantization), tmp_path, None).graph
    inputs = Inputs(Profile(batch=3, block=8, cache=8, rows=8), {"guidance": (3,), "partner": (3,)})
    inputs.input_ids[:] = np.random.default_rng(0).integers(0, 200, inputs.input_ids.shape)
    inputs.position_ids[:] = inputs.head_rows[:] = np.arange(8)
    inputs.attention_mask[..., 8:] = True
    state = {**inputs.arrays(), **HostCache(guided.manifest.model, 3, 8).past}
    scales, partner = np.array([2.5, 9.0, 0.5], np.float32), np.array([1, 1, 0])
    bare, found = run_openvino(graph, [state, {**state, "guidance": scales, "partner": partner}])
    logits = logits_of(bare)
    wanted = logits[partner] + (1 + scales[:, None, None]) * (logits - logits[partner])
    np.testing.assert_allclose(logits_of(found), wanted, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(found["top_logits"][1], bare["top_logits"][1])


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the processor has no bfloat16 instructions")
def test_openvino_does_not_take_bfloat16_with_w8a8(cached, tmp_path):
    """When this fails, docs/quantization.md and the targets may offer it."""
    graph = cached.lower(Lowering("bfloat16", "w8a8"), tmp_path)
    with pytest.raises(RuntimeError, match="element::Type::merge"):
        run_openvino(graph, cached.states)


def test_fewer_bits_err_more(case, tmp_path):
    """Each choice does round: an error of nothing would mean that it changed nothing."""

    def error(**choice: Any) -> float:
        graph = case.lower(Lowering(**choice), tmp_path / "-".join(map(str, choice.values())))
        return float(case.error(run_onnxruntime(graph, case.states)))

    whole, half = error(precision="float32"), error(precision="float16")
    eight, four = error(quantization="int8"), error(quantization="int4")
    both = error(quantization="w8a8")
    assert whole == 0
    assert 1e-6 < half < eight < both < four


def test_both_forms_of_four_bits_have_the_same_scales(case, tmp_path):
    for form in ("qdq", "onnxruntime"):
        case.lower(Lowering("float32", "int4", form), tmp_path / form)
    plain, own = (load_file(tmp_path / form / LOWERED) for form in ("qdq", "onnxruntime"))
    scales = [name for name in plain if name.endswith(".scale")]
    assert len(scales) == 7 * 6
    for name in scales:
        np.testing.assert_array_equal(plain[name], own[name])


def test_a_bundle_of_bfloat16_weights_lowers_to_bfloat16_without_another_weight(sdar, tmp_path):
    found = lower(sdar, Lowering("bfloat16"), tmp_path)
    assert (found.graph, found.cache_dtype) == ("denoiser.onnx", "bfloat16")
    assert found.weights == ("weights/model.safetensors",)
    linked = tmp_path / "weights" / "model.safetensors"
    assert linked.samefile(sdar.root / "weights" / "model.safetensors")


def test_float32_is_the_bundles_own_graph(sdar, tmp_path):
    found = lower(sdar, Lowering(), tmp_path)
    assert (found.weights, found.cache_dtype) == (("weights/model.safetensors",), "float32")
    ours, theirs = (ir.load(path / "denoiser.onnx").graph for path in (tmp_path, sdar.root))
    assert [node.name for node in ours] == [node.name for node in theirs]


def test_float16_converts_the_weights(sdar, tmp_path):
    found = lower(sdar, Lowering("float16"), tmp_path)
    assert "weights/lowered.safetensors" in found.weights
    name = "layers.0.mlp.up_proj.weight"
    low = weight(tmp_path / found.graph, f"{name}.float16")
    np.testing.assert_array_equal(low, weight(sdar.root / "denoiser.onnx", name).astype(np.float16))


def test_weights_on_disk_are_as_small_as_they_should_be(sdar, tmp_path):
    model = sdar.manifest.model
    width, kv = (
        model.num_attention_heads * model.head_dim,
        model.num_key_value_heads * model.head_dim,
    )
    linear = model.num_hidden_layers * model.hidden_size * (2 * width + 2 * kv + 3 * 352)
    sizes = {}
    for quantization in ("int8", "int4"):
        lower(sdar, Lowering("float32", quantization), tmp_path / quantization)
        places = read_header(tmp_path / quantization / "weights" / "lowered.safetensors")
        sizes[quantization] = sum(p.length for name, p in places.items() if "_proj" in name)
    assert linear < sizes["int8"] < 1.05 * linear
    # A float32 scale for every 32 weights.
    assert sizes["int4"] == linear * (4 + 32 / 32) / 8


def test_lowering_twice_gives_the_same_bytes(sdar, tmp_path):
    for name in ("one", "two"):
        lower(sdar, Lowering("float16", "int4"), tmp_path / name)
    for file in ("denoiser.onnx", "weights/lowered.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Lowering("float32", "w8a8"), "w8a8 needs calibration"),
        (Lowering("float32", "int4", block_size=48), "the block size is 48"),
    ],
)
def test_refuses_what_cannot_be_meant(sdar, tmp_path, how, words):
    with pytest.raises(UsageError, match=words):
        lower(sdar, how, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refuses_calibration_that_nothing_would_use(sdar, sdar_states, tmp_path):
    with pytest.raises(UsageError, match="int8 takes no calibration"):
        lower(sdar, Lowering("float32", "int8"), tmp_path / "out", sdar_states)


@pytest.mark.parametrize("block", BLOCK_SIZES)
def test_every_block_size_that_is_offered_works(case, tmp_path, block):
    graph = case.lower(Lowering("float32", "int4", "onnxruntime", block), tmp_path)
    assert case.error(run_onnxruntime(graph, case.states)) < LIMITS["int4"]


def damaged(bundle: Bundle, folder: Path, change: Callable[[np.ndarray], None]) -> Bundle:
    """Return a bundle whose weights' bytes were changed, with its hashes left unchecked."""
    (folder / "weights").mkdir(parents=True)
    (folder / "denoiser.onnx").write_bytes((bundle.root / "denoiser.onnx").read_bytes())
    data = np.frombuffer((bundle.root / "weights/model.safetensors").read_bytes(), np.uint8).copy()
    change(data)
    (folder / "weights" / "model.safetensors").write_bytes(data.tobytes())
    return replace(bundle, root=folder)


@pytest.mark.parametrize("how", [Lowering("float16"), Lowering("float32", "int4")])
def test_refuses_weights_that_are_no_numbers(sdar, tmp_path, how):
    def spoil(data: np.ndarray) -> None:
        data[-4000:] = 0xFF  # bfloat16 NaN

    bundle = damaged(sdar, tmp_path / "bundle", spoil)
    with pytest.raises(CheckpointError, match="no finite numbers"):
        lower(bundle, how, tmp_path / "out")


def test_refuses_weights_that_end_too_early(sdar, tmp_path):
    bundle = damaged(sdar, tmp_path / "bundle", lambda _: None)
    (bundle.root / "weights" / "model.safetensors").write_bytes(b"short")
    with pytest.raises(BundleError, match="cannot be read"):
        lower(bundle, Lowering("float16"), tmp_path / "out")


def test_refuses_a_graph_that_reads_other_files(sdar, tmp_path):
    other = sdar.manifest.model_copy(update={"weights": ("weights/other.safetensors",)})
    with pytest.raises(BundleError, match="not listed as weights"):
        lower(replace(sdar, manifest=other), Lowering(), tmp_path)


def test_a_disk_that_refuses_is_a_sentence(sdar, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(DlmcError, match=r"cannot write the lowered graph .*No space left"):
        lower(sdar, Lowering("bfloat16"), tmp_path)


class TestTensorRt:
    """Builds with TensorRT for RTX, which needs no GPU for that."""

    @pytest.mark.parametrize("precision", ["float16", "bfloat16"])
    def test_weights_stay_as_small_as_they_were_made(self, wide, tmp_path, precision):
        inputs = _inputs(wide)
        sizes = {}
        for quantization, _ in FORMS:
            folder = tmp_path / quantization
            how = Lowering(precision, quantization)  # type: ignore[arg-type]
            lower(wide, how, folder, [inputs] if quantization == "w8a8" else None)
            sizes[quantization] = _engine_size(folder, inputs)
        parameters = 4 * 512 * 512 + 3 * 512 * 2048  # of the linear maps, two bytes each
        saved = {name: (sizes["none"] - size) / parameters for name, size in sizes.items()}
        # Engines of other types hold other kernels, hence the tolerance: some 500 kB.
        assert saved["int8"] == pytest.approx(1.0, abs=0.15)
        assert saved["w8a8"] == pytest.approx(1.0, abs=0.35)
        assert saved["int4"] == pytest.approx(2 - 4.5 / 8, abs=0.15)


def _inputs(bundle: Bundle) -> dict[str, np.ndarray]:
    """Return inputs of the graph for one row of 8 positions over 32 cached ones."""
    sizes = {"batch": 1, "block": 8, "cache": 32, "context": 40, "rows": 8}
    types = {"int64": np.int64, "bool": np.bool_, "float32": np.float32}
    return {
        spec.name: np.ones(
            [sizes[d] if isinstance(d, str) else d for d in spec.shape], types[spec.dtype]
        )
        for spec in bundle.manifest.inputs
    }


def _engine_size(folder: Path, inputs: State) -> int:
    trt = pytest.importorskip("tensorrt_rtx")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(folder / "denoiser.onnx")), parser.get_error(0).desc()
    profile = builder.create_optimization_profile()
    for name, array in inputs.items():
        profile.set_shape(name, array.shape, array.shape, array.shape)
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    engine = builder.build_serialized_network(network, config)
    assert engine is not None
    return int(engine.nbytes)
