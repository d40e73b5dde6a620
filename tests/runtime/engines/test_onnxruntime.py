import shutil

import handmade
import numpy as np
import pytest

from dlmc_runtime import engines
from dlmc_runtime.bundle import Bundle
from dlmc_runtime.engines.base import OUTPUTS, Store
from dlmc_runtime.errors import EngineError

TARGET = "onnxruntime-cpu"


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    root = handmade.write(tmp_path_factory.mktemp("engine") / "bundle")
    return handmade.bind(root, TARGET)


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "bundle")


@pytest.fixture
def engine(original):
    made = engines.load(Bundle.open(original), TARGET)
    yield made
    made.close()


def fed(engine):
    inputs = engine.inputs(engine.profiles[0])
    inputs.input_ids[:] = [[4, 5, 6, 7]]
    inputs.position_ids[:] = [[8, 9, 10, 11]]
    inputs.head_rows[:] = [[3, 2, 1, 0]]
    inputs.attention_mask[:] = True
    return inputs


def test_only_what_is_stored_leaves_the_engine(engine):
    asked = []

    class Session:
        def run(self, names, feeds):
            asked.append(names)
            return session.run(names, feeds)

    session, engine._session = engine._session, Session()
    cache = engine.cache(1, 24)
    engine.forward(fed(engine), cache, [])
    engine.forward(fed(engine), cache, [Store(0, 1)])
    assert asked[0] == list(OUTPUTS)
    assert asked[1] == [*OUTPUTS, "present.0.key", "present.0.value"]


def test_a_cache_that_nobody_sees_is_not_fed(engine):
    fed_with = []

    class Session:
        def run(self, names, feeds):
            fed_with.append(feeds)
            return session.run(names, feeds)

    session, engine._session = engine._session, Session()
    inputs, cache = fed(engine), engine.cache(1, 24)
    inputs.attention_mask[..., :24] = False
    blind = engine.forward(inputs, cache, [Store(0, 4)])
    assert fed_with[0]["past_key_values.0.key"].shape[2] == 0
    assert fed_with[0]["attention_mask"].shape == (1, 1, 4, 4)
    assert cache.past["past_key_values.0.key"][0, :, :4].any()
    inputs.attention_mask[0, 0, 0, 23] = True
    engine.forward(inputs, cache, [])
    assert fed_with[1]["past_key_values.0.key"].shape[2] == 24
    other = engine.forward(inputs, engine.cache(1, 24), [])
    # What row 0 of the block sees has changed, what its last row sees has not.
    np.testing.assert_allclose(blind.logsumexp[0, 0], other.logsumexp[0, 0], rtol=1e-5)


def test_a_failing_forward_is_one_sentence_and_nothing_on_stderr(engine, capfd):
    inputs = fed(engine)
    inputs.head_rows[:] = 99
    with pytest.raises(EngineError, match="ONNX Runtime failed at 1x4 over 24, 4 rows") as caught:
        engine.forward(inputs, engine.cache(1, 24), [])
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def reload(root, model):
    (root / "denoiser.onnx").write_bytes(model.SerializeToString())
    handmade.rebind(handmade.seal(root))
    return engines.load(Bundle.open(root), TARGET)


def test_what_onnx_runtime_refuses_is_one_sentence(root, capfd):
    model = handmade.graph()
    model.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(EngineError, match=r"ONNX Runtime [\d.]+ cannot load .*NoSuchOp") as caught:
        reload(root, model)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
