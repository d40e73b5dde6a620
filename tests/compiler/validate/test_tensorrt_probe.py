"""The instrumented graph in TensorRT: built by the real library, run by the double."""

import json
from typing import Any

import fake_tensorrt
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fake_cuda import Cuda
from fake_tensorrt import TensorRT

from dlmc.validate import points, tensorrt_probe
from dlmc.validate.layers import choose, compare_layers
from dlmc.validate.reference import graph_record
from dlmc.validate.tensorrt_probe import Runner, build_network
from dlmc.validate.tolerances import EXACT
from dlmc_runtime.engines.base import tensor_shape
from dlmc_runtime.engines.cuda import CudaDevice
from dlmc_runtime.errors import EngineError


@pytest.fixture
def record(bundle):
    """An engine of TensorRT for the bundle's graph, of which only the record is needed."""
    own = graph_record(bundle, bundle.engine("onnxruntime-cpu").profiles)
    return own.model_copy(update={"target": "tensorrt", "plan": "engines/tensorrt/engine.plan"})


def _instrumented(bundle, folder):
    model = ir.load(bundle.root / bundle.manifest.graph)
    values = points.points(model.graph)
    points.instrument(model, values, points.cuts(points.way(values)))
    return points.write(model, bundle.root, folder), values


@pytest.mark.slow
def test_the_real_library_builds_the_graph_with_its_points_as_outputs(bundle, record, tmp_path):
    trt = pytest.importorskip("tensorrt_rtx")
    path, values = _instrumented(bundle, tmp_path / "graph")
    plan, shapes = build_network(trt, bundle, path, record.profiles, "sm89")
    assert len(plan) > 1000
    assert len(shapes) == len(record.profiles)
    hidden = bundle.manifest.model.hidden_size
    for one, profile in zip(shapes, record.profiles, strict=True):
        for spec in bundle.manifest.inputs:
            assert one[spec.name] == tensor_shape(spec, profile)
        assert one["given.layers.0"] == (profile.batch, profile.block, hidden)
        assert one[points.SWITCH] == ()
    own_logger = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(own_logger).create_network(0)
    parser = trt.OnnxParser(network, own_logger)
    assert parser.parse_from_file(str(path))
    outputs = {network.get_output(index).name for index in range(network.num_outputs)}
    assert {points.marked_name(point) for point in values} <= outputs


def test_what_the_real_library_cannot_read_is_one_error(bundle, record, tmp_path):
    trt = pytest.importorskip("tensorrt_rtx")
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineError, match="cannot read the instrumented graph"):
        build_network(trt, bundle, tmp_path / "broken.onnx", record.profiles)


class Shapes(TensorRT):
    """The double, whose contexts also say which shape an output has."""

    def Runtime(self, logger):  # noqa: N802
        runtime: Any = super().Runtime(logger)
        load = runtime.deserialize_cuda_engine

        def deserialize_cuda_engine(data):
            engine = load(data)
            if engine is not None:
                make = engine.create_execution_context
                engine.create_execution_context = lambda how: _with_shapes(engine, make(how))
            return engine

        runtime.deserialize_cuda_engine = deserialize_cuda_engine
        return runtime


def _with_shapes(engine: Any, context: Any) -> Any:
    def get_tensor_shape(name):
        zeros = {
            one: np.zeros(shape, engine.numpy_type(one)) for one, shape in context._shapes.items()
        }
        zeros["attention_mask"] = np.ones_like(zeros["attention_mask"])
        return engine.session.run([name], zeros)[0].shape

    context.get_tensor_shape = get_tensor_shape
    return context


def _plan(bundle, path, profiles):
    """Stand in for the builder: a plan of the double, which holds the graph itself."""
    model = ir.load(path)
    inputs: dict[str, Any] = {str(value.name): value for value in model.graph.inputs}
    shapes = []
    for profile in profiles:
        one = {spec.name: tensor_shape(spec, profile) for spec in bundle.manifest.inputs}
        for name in inputs.keys() - one.keys():
            shape = inputs[name].shape
            sizes = (profile.batch, profile.block, shape[-1]) if len(shape) else ()
            one[name] = tuple(int(size) for size in sizes)
        shapes.append({name: one[name] for name in inputs})
    header = json.dumps(
        {
            "version": fake_tensorrt.VERSION,
            "profiles": [{k: [*v] for k, v in s.items()} for s in shapes],
        }
    )
    proto = ir.to_proto(model)
    onnx.external_data_helper.load_external_data_for_model(proto, str(path.parent))
    return header.encode() + b"\n" + proto.SerializeToString(), shapes


@pytest.fixture
def library(monkeypatch):
    """The doubles of CUDA and TensorRT where the probe looks for the real ones."""
    trt = Shapes(Cuda())
    monkeypatch.setattr("dlmc_runtime.engines.cuda._library", lambda: trt.cuda)
    monkeypatch.setattr(tensorrt_probe, "library", lambda target: trt)

    def build_network(library, bundle, path, profiles):
        assert library is trt
        return _plan(bundle, _unlinked(path), profiles)

    monkeypatch.setattr(tensorrt_probe, "build_network", build_network)
    return trt


def _unlinked(path):
    """Give a graph weights that are no links, which ONNX's own loader refuses."""
    for weights in path.parent.rglob("*.safetensors"):
        data = weights.read_bytes()
        weights.unlink()
        weights.write_bytes(data)
    return path


def test_layers_of_a_tensorrt_engine_are_compared(bundle, record, recording, library):
    found = compare_layers(bundle, record, choose(recording.states), EXACT)
    assert found.reference == "graph"
    assert found.first is None
    assert {"layers.0", "layers.1", "norm"} <= {one.point for one in found.way}


def test_a_layer_that_the_library_computes_wrongly_is_found(
    bundle, record, recording, library, monkeypatch
):
    def build_network(trt, bundle, path, profiles):
        model = ir.load(path)
        node = next(n for n in model.graph if n.name == "layers.1.self_attn.v_proj.MatMul")
        readers = list(node.outputs[0].uses())
        wrong = ir.node("Neg", [node.outputs[0]], name="wrong")
        wrong.outputs[0].type, wrong.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        for use in readers:
            use.node.replace_input_with(use.idx, wrong.outputs[0])
        model.graph.insert_after(node, wrong)
        path.write_bytes(ir.to_proto(model).SerializeToString())
        return _plan(bundle, _unlinked(path), profiles)

    monkeypatch.setattr(tensorrt_probe, "build_network", build_network)
    found = compare_layers(bundle, record, choose(recording.states), EXACT)
    assert found.first is not None
    assert found.first.point == "layers.1.self_attn.v_proj"
    assert found.first.error == pytest.approx(2.0, abs=1e-4)


def test_a_lossy_engine_is_lowered_again(bundle, record, recording, library):
    low = record.model_copy(update={"precision": "float16", "cache_dtype": "float16"})
    limits = {**EXACT, "layers": EXACT["layers"].model_copy(update={"atol": 0.05})}
    limits["channels"] = limits["layers"]
    found = compare_layers(bundle, low, choose(recording.states), limits)
    assert found.first is None
    assert max(one.error for one in found.points) > 1e-5


def test_shapes_of_no_profile_are_refused(bundle, record, recording, library, tmp_path):
    path, _ = _instrumented(bundle, tmp_path / "graph")
    plan, shapes = _plan(bundle, _unlinked(path), record.profiles)
    device = CudaDevice()
    runner = Runner(library, plan, shapes, device)
    with pytest.raises(EngineError, match="no profile of these shapes"):
        runner.run(recording.states[0].feeds())
    device.close()


def test_a_plan_that_does_not_load_is_one_error(library):
    device = CudaDevice()
    with pytest.raises(EngineError, match="cannot load the instrumented graph"):
        Runner(library, b"no plan", [], device)
    device.close()


def test_without_a_gpu_there_is_one_error(bundle, record, recording):
    with pytest.raises(EngineError, match=r"tensorrt|CUDA|cuda"):
        compare_layers(bundle, record, choose(recording.states), EXACT)
