from dataclasses import replace

import numpy as np
import pytest

from dlmc.validate.compare import compare_states
from dlmc.validate.recording import State
from dlmc_runtime.manifest import Tolerance


class Tampered:
    """An engine whose answers or cache are changed after the fact."""

    def __init__(self, engine, change=lambda outputs: outputs, spoil=lambda cache: None):
        self.engine, self.change, self.spoil = engine, change, spoil

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def forward(self, inputs, cache, stores):
        outputs = self.change(self.engine.forward(inputs, cache, stores))
        self.spoil(cache)
        return outputs


def _rows(states, engine, tolerances=None):
    return {row.output: row for row in compare_states(states, engine, tolerances or {})}


def test_the_engine_agrees_with_torch(states, engine):
    rows = _rows(states, engine)
    assert set(rows) == {
        "top_ids",
        "top_logits",
        "logsumexp",
        "entropy",
        "tempered_logsumexp",
        "present",
    }
    assert all(row.ok for row in rows.values()), rows
    assert all(row.compared > 0 for row in rows.values()), rows


@pytest.mark.parametrize("name", ["top_logits", "logsumexp", "entropy", "tempered_logsumexp"])
def test_a_number_beyond_its_tolerance_is_named(states, engine, name):
    tampered = Tampered(engine, lambda o: replace(o, **{name: getattr(o, name) + 0.01}))
    rows = _rows(states, tampered)
    assert [output for output, row in rows.items() if not row.ok] == [name]
    assert rows[name].difference == pytest.approx(0.01, abs=2e-3)
    assert rows[name].where.startswith("forward ")


def test_a_tolerance_from_the_manifest_is_used(states, engine):
    tampered = Tampered(engine, lambda o: replace(o, entropy=o.entropy + 0.01))
    assert _rows(states, tampered, {"entropy": Tolerance(atol=0.02)})["entropy"].ok


def test_nan_is_never_within_tolerance(states, engine):
    def spoil(outputs):
        entropy = outputs.entropy.copy()
        entropy[0, 0] = np.nan
        return replace(outputs, entropy=entropy)

    row = _rows(states, Tampered(engine, spoil))["entropy"]
    assert not row.ok
    assert row.difference == np.inf


def test_another_best_id_is_named_with_both_values(states, engine):
    row = _rows(states, Tampered(engine, lambda o: replace(o, top_ids=o.top_ids + 1)))["top_ids"]
    assert not row.ok
    assert row.difference == row.compared
    wanted = int(states[0].outputs.top_ids[0, 0, 0])
    assert row.where == f"forward 1 [0,0]: {wanted + 1}, not {wanted}"


def test_ids_closer_than_twice_the_tolerance_may_change_places(states, engine):
    close = replace(states[0].outputs, top_logits=np.ones_like(states[0].outputs.top_logits))
    state = State(states[0].inputs, states[0].before, states[0].stores, close, states[0].after)
    tampered = Tampered(engine, lambda o: replace(o, top_ids=o.top_ids + 1))
    assert _rows([state], tampered)["top_ids"].ok


def test_forwards_that_store_nothing_say_nothing_about_the_cache(states, engine):
    denoising = [state for state in states if not state.stores]
    assert denoising
    assert "present" not in _rows(denoising, engine)


def test_a_wrong_cache_is_noticed(states, engine):
    def spoil(cache):
        cache.past["past_key_values.1.value"] += 0.5

    rows = _rows(states, Tampered(engine, spoil=spoil))
    assert [output for output, row in rows.items() if not row.ok] == ["present"]
