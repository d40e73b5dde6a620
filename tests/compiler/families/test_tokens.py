import pytest

from dlmc.families import Overrides
from dlmc.families.keys import Keys
from dlmc.families.tokens import TokenIds, read_token_ids
from dlmc_runtime.errors import CheckpointError

NOTHING: dict[str, object] = {}


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (
            {"mask_token_id": 9, "eos_token_id": 1, "pad_token_id": 2, "bos_token_id": 3},
            NOTHING,
            TokenIds(9, (1,), 2, 3),
        ),
        (
            {"mask_token_id": 9, "eos_token_id": 1, "pad_token_id": 2},
            {"eos_token_id": [5, 1], "pad_token_id": 4, "bos_token_id": 0},
            TokenIds(9, (5, 1), 4, 0),
        ),
        ({"mask_token_id": 9, "eos_token_id": [7, 8]}, NOTHING, TokenIds(9, (7, 8), 7, None)),
        ({"mask_token_id": 9, "eos_token_id": None}, NOTHING, TokenIds(9, (), 9, None)),
    ],
)
def test_where_ids_come_from(
    config: dict[str, object], generation: dict[str, object], expected: TokenIds
):
    assert read_token_ids(Keys(config), Keys(generation), 10, Overrides()) == expected


def test_a_stated_mask_wins_even_over_nonsense():
    config = Keys({"mask_token_id": "<mask>"})
    assert read_token_ids(config, Keys({}), 10, Overrides(mask_id=3)).mask == 3


def test_no_mask():
    with pytest.raises(
        CheckpointError, match="'mask_token_id' is missing: state it with --mask-id"
    ):
        read_token_ids(Keys({}), Keys({}), 10, Overrides())


def test_a_mask_that_stops():
    with pytest.raises(CheckpointError, match="token 3 would be mask and stop token at once"):
        read_token_ids(Keys({"eos_token_id": 3}), Keys({}), 10, Overrides(mask_id=3))


def test_a_default_mask_comes_last():
    assert read_token_ids(Keys({}), Keys({}), 10, Overrides(), default_mask=4).mask == 4
    stated = Keys({"mask_token_id": 3})
    assert read_token_ids(stated, Keys({}), 10, Overrides(), default_mask=4).mask == 3
