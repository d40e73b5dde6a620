import numpy as np
import pytest

from dlmc_runtime.engines.base import NEXT_SELF_CONDITIONING, OUTPUTS, Inputs, Outputs
from dlmc_runtime.manifest import Profile


def test_outputs_are_the_graphs_in_its_order():
    assert tuple(Outputs.__dataclass_fields__) == (*OUTPUTS, NEXT_SELF_CONDITIONING)


def test_buffers_have_the_graphs_names_types_and_shapes():
    inputs = Inputs(Profile(batch=2, block=5, cache=7, rows=3))
    found = {name: (array.shape, array.dtype.name) for name, array in inputs.arrays().items()}
    assert found == {
        "input_ids": ((2, 5), "int64"),
        "position_ids": ((2, 5), "int64"),
        "attention_mask": ((2, 1, 5, 12), "bool"),
        "head_rows": ((2, 3), "int64"),
        "temperature": ((2,), "float32"),
        "uniform": ((2, 3), "float32"),
    }
    assert inputs.filled_for == [None, None]


EXTRAS = {
    "sliding_attention_mask": (2, 1, 5, 9),
    "adapter": (2,),
    "self_conditioning": (2, 5, 6),
    "denoising": (2,),
    "guidance": (2,),
    "partner": (2,),
}


def test_buffers_that_only_some_graphs_have_are_made_where_named():
    shape = Profile(batch=2, block=5, cache=7, rows=3)
    found = Inputs(shape, EXTRAS).arrays()
    assert [*found] == [
        *("input_ids", "position_ids", "attention_mask", "sliding_attention_mask", "adapter"),
        *("self_conditioning", "denoising"),
        *("head_rows", "temperature", "uniform", "guidance", "partner"),
    ]
    assert {name: found[name].shape for name in EXTRAS} == EXTRAS
    types = [found[name].dtype.name for name in EXTRAS]
    assert types == ["bool", "float32", "float32", "bool", "float32", "int64"]
    for name, size in EXTRAS.items():
        assert [*Inputs(shape, {name: size}).arrays().keys() & {*EXTRAS}] == [name]


def test_padding_sees_itself_in_both_masks_and_guides_itself():
    shapes = {"sliding_attention_mask": (2, 1, 5, 9), "partner": (2,)}
    inputs = Inputs(Profile(batch=2, block=5, cache=7, rows=1), shapes)
    first, second = inputs.masks()
    np.testing.assert_array_equal(first[..., 7:], second[..., 4:])
    assert not second[..., :4].any()
    assert second.any(-1).all()
    assert inputs.partner is not None
    assert inputs.partner.tolist() == [0, 1]


def test_a_row_that_was_not_fed_is_padding_that_sees_only_itself():
    inputs = Inputs(Profile(batch=2, block=3, cache=2, rows=1))
    own = inputs.attention_mask[:, 0, :, 2:]
    np.testing.assert_array_equal(own, [np.eye(3, dtype=bool)] * 2)
    assert not inputs.attention_mask[..., :2].any()


def test_buffers_are_filled_in_place():
    inputs = Inputs(Profile(batch=1, block=1, cache=0, rows=1))
    inputs.input_ids[0, 0] = 5
    assert inputs.arrays()["input_ids"] is inputs.input_ids


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_do_not_change(name):
    ids, numbers = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)
    outputs = Outputs(ids, numbers, numbers, numbers, numbers, numbers, ids, numbers)
    with pytest.raises(AttributeError):
        setattr(outputs, name, None)
