import numpy as np
import onnx_ir as ir
import pytest

from dlmc.lowering.passes.check_types import CheckTypes
from dlmc.lowering.streamed import Streamed

LOW = ir.DataType.BFLOAT16


def model() -> ir.Model:
    """A cache of bfloat16 is added to a weight and handed out."""
    return ir.from_onnx_text(
        """
        <ir_version: 10, opset_import: ["" : 23]>
        main (bfloat16[n] "past_key_values.0.key") => (bfloat16[n] "present.0.key", float[n] y)
        <bfloat16[1] w = {1}, float[1] one = {1}>
        {
            "present.0.key" = Add("past_key_values.0.key", w)
            wide = Cast<to=1>("past_key_values.0.key")
            y = Add(wide, one)
        }
        """
    )


def test_accepts_types_that_fit_and_changes_nothing():
    made = model()
    before = ir.to_proto(made).SerializeToString()
    assert not CheckTypes(LOW)(made).modified
    assert ir.to_proto(made).SerializeToString() == before


def test_refuses_a_cache_of_another_type():
    with pytest.raises(ir.passes.PassError, match=r"past_key_values.0.key is BFLOAT16, not FLOAT"):
        CheckTypes(ir.DataType.FLOAT)(model())


def test_refuses_operands_of_two_types():
    made = model()
    made.graph[0].replace_input_with(1, made.graph.initializers["one"])
    with pytest.raises(ir.passes.PassError, match="types do not fit"):
        CheckTypes(LOW)(made)


def test_makes_no_streamed_tensor():
    def refuse():
        raise AssertionError("made")

    made = model()
    source = ir.tensor(np.ones(1, np.float32))
    made.graph.initializers["w"].const_value = Streamed(LOW, (1,), refuse, "w", source)
    CheckTypes(LOW)(made)
    assert isinstance(made.graph.initializers["w"].const_value, Streamed)
