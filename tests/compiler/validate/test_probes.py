import numpy as np
import onnx_ir as ir
import pytest

from dlmc.validate import points
from dlmc.validate.probes import narrowed, open_probe, open_torch, session
from dlmc.validate.reference import graph_record
from dlmc_runtime.bfloat16 import to_float32
from dlmc_runtime.errors import EngineError

CHOSEN = ["layers.0", "layers.1.mlp.down_proj", "norm"]


@pytest.fixture
def graph(bundle, tmp_path):
    """The bundle's graph with a few points marked."""
    model = ir.load(bundle.root / bundle.manifest.graph)
    every = points.points(model.graph)
    points.instrument(model, {point: every[point] for point in CHOSEN})
    return points.write(model, bundle.root, tmp_path / "graph")


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "openvino-cpu"])
def test_libraries_answer_the_points_alike(bundle, reference, states, graph, target):
    pytest.importorskip({"openvino-cpu": "openvino"}.get(target, "onnxruntime"))
    record = graph_record(bundle, bundle.manifest.profiles).model_copy(update={"target": target})
    with open_probe(bundle, graph, record, CHOSEN) as probe, open_torch(reference, CHOSEN) as torch:
        for state in states[:3]:
            found, wanted = probe(state.feeds()), torch(state.feeds())
            assert list(found) == CHOSEN
            for point in CHOSEN:
                np.testing.assert_allclose(found[point], wanted[point], atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_low_precision_engine_is_given_its_own_kind_of_cache(bundle, states, dtype):
    record = graph_record(bundle, bundle.manifest.profiles)
    feeds = states[-1].feeds()
    low = narrowed(feeds, record.model_copy(update={"cache_dtype": dtype}))
    for name, array in feeds.items():
        if not name.startswith("past_key_values."):
            assert low[name] is array
            continue
        wide = low[name].astype(np.float32) if dtype == "float16" else to_float32(low[name])
        assert low[name].itemsize == 2
        np.testing.assert_allclose(wide, array, rtol=0.01, atol=1e-6)


def test_a_bfloat16_graph_is_probed_in_openvino(bundle, recording, tmp_path):
    pytest.importorskip("openvino")
    from dlmc.lowering.lower import Lowering, lower

    made = lower(bundle, Lowering("bfloat16"), tmp_path / "low")
    model = ir.load(tmp_path / "low" / made.graph)
    every = points.points(ir.load(bundle.root / bundle.manifest.graph).graph)
    points.instrument(model, {point: every[point] for point in CHOSEN})
    path = points.write(model, tmp_path / "low", tmp_path / "graph")
    record = graph_record(bundle, bundle.manifest.profiles).model_copy(
        update={"target": "openvino-cpu", "precision": "bfloat16", "cache_dtype": "bfloat16"}
    )
    exact = graph_record(bundle, bundle.manifest.profiles)
    state = recording.states[-1]
    plain = ir.load(bundle.root / bundle.manifest.graph)
    points.instrument(plain, {point: every[point] for point in CHOSEN})
    sound = points.write(plain, bundle.root, tmp_path / "plain")
    with (
        open_probe(bundle, path, record, CHOSEN) as low,
        open_probe(bundle, sound, exact, CHOSEN) as full,
    ):
        found, wanted = low(state.feeds()), full(state.feeds())
    for point in CHOSEN:
        assert found[point].dtype == np.float32
        error = np.abs(found[point] - wanted[point]).max() / np.abs(wanted[point]).max()
        assert 0 < error < 0.05


def test_a_target_without_a_way_in_is_refused_by_name(bundle, graph):
    record = graph_record(bundle, bundle.manifest.profiles).model_copy(update={"target": "abacus"})
    with (
        pytest.raises(EngineError, match="layers of abacus engines cannot be read"),
        open_probe(bundle, graph, record, CHOSEN),
    ):
        pass


def test_what_a_library_refuses_is_one_error(bundle, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    record = graph_record(bundle, bundle.manifest.profiles)
    with (
        pytest.raises(EngineError, match="cannot run the graph with its layers marked"),
        open_probe(bundle, broken, record, CHOSEN),
    ):
        pass


def test_what_goes_wrong_outside_of_the_library_is_not_blamed_on_it(bundle, graph):
    record = graph_record(bundle, bundle.manifest.profiles)
    with pytest.raises(ZeroDivisionError), open_probe(bundle, graph, record, CHOSEN):
        1 / 0  # noqa: B018


def test_inputs_that_a_library_refuses_are_one_error(bundle, graph):
    record = graph_record(bundle, bundle.manifest.profiles)
    with open_probe(bundle, graph, record, CHOSEN) as probe, pytest.raises(EngineError):
        probe({"input_ids": np.zeros((1, 1), np.int64)})


def test_polygraphys_runner_answers_all_outputs(bundle, states):
    with session(bundle.root / bundle.manifest.graph) as runner:
        found = runner.infer(states[0].feeds())
    assert list(found) == [spec.name for spec in bundle.manifest.outputs]
