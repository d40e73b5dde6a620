from typing import get_args

import pytest

from dlmc.validate.comparators import NUMBERS
from dlmc.validate.reference import graph_record
from dlmc.validate.tolerances import DEFAULTS, EXACT, SHARES, limits, strict_limits
from dlmc_runtime.manifest import Precision, Quantization, Tolerance


def _record(bundle, **changes):
    return graph_record(bundle, bundle.manifest.profiles).model_copy(update=changes)


def test_the_table_knows_every_precision_and_quantization():
    assert {*DEFAULTS} == {*get_args(Precision), *get_args(Quantization)}


@pytest.mark.parametrize("kind", list(DEFAULTS))
def test_every_entry_limits_everything_that_is_compared(kind):
    wanted = {*NUMBERS, *SHARES, "present", "layers", "channels"}
    assert wanted <= {*DEFAULTS[kind]}


def test_a_float32_engine_is_held_to_the_bundles_own_tolerances(bundle):
    manifest = bundle.manifest.model_copy(update={"tolerances": {"entropy": Tolerance(atol=0.5)}})
    found = limits(manifest, _record(bundle))
    assert found["entropy"].atol == 0.5
    assert found["logsumexp"] == EXACT["logsumexp"]
    assert found["committed"].atol == found["generation"].atol == 0.0
    assert strict_limits(manifest) == found


def test_a_lossy_engine_is_held_to_the_table_whatever_the_bundle_says(bundle):
    manifest = bundle.manifest.model_copy(update={"tolerances": {"entropy": Tolerance(atol=9.0)}})
    found = limits(manifest, _record(bundle, precision="bfloat16"))
    assert found == DEFAULTS["bfloat16"]


def test_the_wider_of_precision_and_quantization_counts(bundle):
    found = limits(bundle.manifest, _record(bundle, precision="bfloat16", quantization="int8"))
    assert found["top_logits"] == DEFAULTS["bfloat16"]["top_logits"]
    assert found["channels"] == DEFAULTS["int8"]["channels"]


def test_what_the_record_says_wins(bundle):
    own = {"top_logits": Tolerance(atol=0.25), "generation": Tolerance(atol=1.0)}
    for changes in ({}, {"quantization": "int4"}):
        found = limits(bundle.manifest, _record(bundle, tolerances=own, **changes))
        assert {name: found[name] for name in own} == own


@pytest.mark.parametrize(
    ("loss", "logits", "committed", "layers"),
    [
        ("float32", 1e-3, 0.0, 1e-4),
        ("float16", 0.1, 0.02, 0.02),
        ("bfloat16", 2.5, 0.1, 0.2),
        ("int8", 1.0, 0.1, 0.1),
        ("int4", 15.0, 0.4, 1.0),
        ("w8a8", 3.0, 0.2, 0.3),
    ],
)
def test_no_limit_is_wider_than_what_is_documented(loss, logits, committed, layers):
    """Wider ones would pass what docs/validation.md says they catch."""
    found = DEFAULTS[loss]
    assert found["top_logits"].atol <= logits
    assert found["committed"].atol <= committed
    assert found["layers"].atol <= layers


def test_answers_that_hang_on_draws_are_not_held_to_a_share(bundle):
    manifest = bundle.manifest
    tokens = manifest.tokens.model_copy(update={"mask": None})
    drawn = manifest.model_copy(update={"tokens": tokens})
    for precision in ("bfloat16", "float32"):
        record = _record(bundle, precision=precision)
        found, masked = limits(drawn, record), limits(manifest, record)
        assert found["generation"].atol == 1.0
        assert masked["generation"].atol < 1.0
        # What each forward draws and keeps is held to as much as everywhere.
        assert all(found[name] == masked[name] for name in ("sampled_id", "committed", "top_ids"))
