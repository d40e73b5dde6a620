from dataclasses import replace
from typing import get_args

import pytest

from dlmc.denoiser.config import DenoiserConfig
from dlmc.families import FAMILIES, Family, FamilySpec, Overrides
from dlmc_runtime.errors import UsageError
from dlmc_runtime.manifest import Profile, Regime, SamplerSpec, Tokens

SPEC = FamilySpec(
    family="any",
    architecture="Any",
    denoiser=DenoiserConfig(32, 8, 16, 2, 2, 1, 4, 1e-6, 1e4),
    regime="block",
    block_length=4,
    shift=0,
    mask_id=31,
    stop_ids=(30,),
    pad_id=30,
    bos_id=None,
    max_position_embeddings=64,
    sampler=SamplerSpec(name="low_confidence"),
    max_new_tokens=16,
    candidates=4,
)


def test_nothing_stated_changes_nothing():
    assert Overrides().apply(SPEC) == SPEC


def test_overrides_replace_what_they_state():
    stated = Overrides(mask_id=0, block_length=8, shift=1, candidates=32, max_new_tokens=64)
    expected = replace(SPEC, mask_id=0, block_length=8, shift=1, candidates=32, max_new_tokens=64)
    assert stated.apply(SPEC) == expected


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (Overrides(mask_id=32), "--mask-id 32 does not fit: give 0 to 31"),
        (Overrides(mask_id=-1), "--mask-id -1 does not fit"),
        (Overrides(block_length=0), "--block-length 0 does not fit: give 1 to 64"),
        (Overrides(block_length=65), "--block-length 65 does not fit"),
        (Overrides(shift=2), "--shift 2 does not fit: give 0 to 1"),
        (Overrides(candidates=33), "--candidates 33 does not fit"),
        (Overrides(max_new_tokens=65), "--max-new-tokens 65 does not fit"),
        (
            Overrides(regime="causal"),
            "--attention causal does not fit: give full or block or context",
        ),
    ],
)
def test_overrides_that_do_not_fit(overrides: Overrides, sentence: str):
    with pytest.raises(UsageError, match=sentence):
        overrides.apply(SPEC)


@pytest.mark.parametrize("regime", get_args(Regime))
def test_attention_is_what_is_stated(regime: Regime):
    for before in get_args(Regime):
        stated = Overrides(regime=regime).apply(replace(SPEC, regime=before))
        assert stated == replace(SPEC, regime=regime)


def test_whole_sequences_have_no_seeds_and_no_sub_blocks():
    sampler = SamplerSpec(name="maskgit_plus", parameters={"threshold": 0.9, "sub_block_length": 2})
    spec = replace(SPEC, seeded=True, aligned_to="answer", sampler=sampler)
    full = Overrides(regime="full").apply(spec)
    assert (full.seeded, full.aligned_to) == (False, "sequence")
    assert full.sampler.parameters == {"threshold": 0.9}
    assert Overrides(regime="block").apply(spec) == spec


def test_blocks_need_a_length():
    whole = replace(SPEC, regime="full", block_length=64)
    with pytest.raises(UsageError, match=r"--attention block needs blocks.*: give --block-length"):
        Overrides(regime="block").apply(whole)
    stated = Overrides(regime="block", block_length=8).apply(whole)
    assert (stated.regime, stated.block_length) == ("block", 8)


def test_a_window_is_for_whole_sequences():
    window = replace(SPEC, regime="full", denoiser=replace(SPEC.denoiser, sliding_window=4))
    with pytest.raises(UsageError, match="whose layers see a window"):
        Overrides(regime="block").apply(window)
    assert Overrides(regime="full").apply(window) == window


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_weight_names_expand_layers_and_drop_a_tied_head(family: Family):
    names = family.weight_names(SPEC)
    assert {name for name in names if "layers.1." in name}
    assert not {name for name in names if "layers.2." in name or "{" in name}
    assert "lm_head.weight" in names
    assert not {
        name for name in names if "proj.bias" in name or "q_norm" in name or "adapter" in name
    }
    assert family.duplicates(SPEC) == frozenset()

    tied = replace(SPEC, denoiser=replace(SPEC.denoiser, tie_word_embeddings=True))
    assert names.keys() - family.weight_names(tied).keys() == {"lm_head.weight"}
    assert family.duplicates(tied) == {names["lm_head.weight"]}


def test_the_sliding_window_is_that_of_the_network():
    assert SPEC.sliding_window is None
    sliding = replace(SPEC, denoiser=replace(SPEC.denoiser, sliding_window=64))
    assert sliding.sliding_window == 64


@pytest.mark.parametrize(
    ("regime", "length", "block", "rows"),
    [("full", 4, 16, 4), ("full", 64, 16, 16), ("block", 4, 16, 4), ("context", 64, 16, 64)],
)
def test_rows_through_the_head(regime: Regime, length: int, block: int, rows: int):
    spec = replace(SPEC, regime=regime, block_length=length)
    assert spec.rows_in(Profile(batch=1, block=block, cache=0, rows=1)) == rows


def test_special_tokens_are_those_of_the_manifest():
    edits = replace(SPEC, delete_id=5, split_id=6)
    assert edits.tokens == Tokens(mask=31, stop=(30,), pad=30, suppressed=(31,), delete=5, split=6)
    assert replace(SPEC, mask_id=None).tokens.suppressed == ()
