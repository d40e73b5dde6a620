from dataclasses import replace

import numpy as np
import pytest

from dlmc.validate.compare import compare_generations, compare_states, layer_row
from dlmc.validate.report import Layers, Place, PointError
from dlmc.validate.tolerances import EXACT
from dlmc_runtime.manifest import Tolerance

HEAD = [
    *("top_logits", "sampled_logit", "logsumexp", "tempered_logsumexp"),
    *("entropy", "tempered_entropy"),
]


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


def _rows(states, engine, **changes):
    limits = {**EXACT, **changes}
    return {row.output: row for row in compare_states(states, engine, limits, EXACT)}


def _broken(rows):
    return [name for name, row in rows.items() if not row.ok]


def test_the_engine_agrees_with_torch(states, engine):
    rows = _rows(states, engine)
    assert list(rows) == ["top_ids", "sampled_id", *HEAD, "present", "committed"]
    assert not _broken(rows)
    assert all(row.compared > 0 for row in rows.values()), rows
    assert all(len(row.by_forward) == len(states) for row in rows.values())


@pytest.mark.parametrize("name", [name for name in HEAD if name != "sampled_logit"])
def test_a_number_beyond_its_tolerance_is_named_with_place_and_values(states, engine, name):
    tampered = Tampered(engine, lambda o: replace(o, **{name: getattr(o, name) + 0.01}))
    rows = _rows(states, tampered)
    assert name in _broken(rows)
    row = rows[name]
    assert row.wrong == row.compared
    assert row.difference == pytest.approx(0.01, abs=2e-3)
    assert row.where is not None
    assert row.where.output == name
    state = next(state for state in states if state.forward == row.where.forward)
    fed = state.inputs.head_rows[0, row.where.index[1]]
    assert row.where.position == state.inputs.position_ids[0, fed]
    reference = getattr(state.outputs, name)[row.where.index]
    assert row.where.reference == pytest.approx(float(reference))
    assert row.where.ours == pytest.approx(float(reference) + 0.01, abs=2e-3)


def test_only_one_forward_is_wrong_where_only_one_is(states, engine):
    calls = iter(range(len(states)))

    def change(outputs):
        return replace(outputs, entropy=outputs.entropy + 0.5 * (next(calls) == 2))

    row = _rows(states, Tampered(engine, change))["entropy"]
    assert [x is not None and x > 0.1 for x in row.by_forward].index(True) == 2
    assert row.where is not None
    assert row.where.forward == states[2].forward


def test_a_tolerance_is_absolute_plus_relative(states, engine):
    tampered = Tampered(engine, lambda o: replace(o, logsumexp=o.logsumexp * 1.01))
    assert "logsumexp" in _broken(_rows(states, tampered))
    rows = _rows(states, tampered, logsumexp=Tolerance(atol=1e-3, rtol=0.011))
    assert rows["logsumexp"].ok


def test_nan_is_never_within_tolerance(states, engine):
    def spoil(outputs):
        entropy = outputs.entropy.copy()
        entropy[0, 0] = np.nan
        return replace(outputs, entropy=entropy)

    row = _rows(states, Tampered(engine, spoil), entropy=Tolerance(atol=1e9))["entropy"]
    assert not row.ok
    assert row.difference == np.inf
    assert row.wrong == len(states)


def test_another_best_id_is_named_with_both_values(states, engine):
    row = _rows(states, Tampered(engine, lambda o: replace(o, top_ids=o.top_ids + 1)))["top_ids"]
    assert not row.ok
    assert row.wrong == row.compared
    assert row.difference == 1.0
    assert row.where is not None
    wanted = int(states[0].outputs.top_ids[0, 0, 0])
    assert (row.where.ours, row.where.reference) == (wanted + 1, wanted)


def test_lossy_engines_may_differ_in_a_share_of_ids(states, engine):
    calls = iter(range(len(states)))

    def change(outputs):
        return replace(outputs, top_ids=outputs.top_ids + (next(calls) == 0))

    tampered = Tampered(engine, change)
    row = _rows(states, tampered, top_ids=Tolerance(atol=0.5))["top_ids"]
    assert row.ok
    assert 0 < row.difference < 0.5


def test_a_wrong_cache_is_noticed_and_named(states, engine):
    def spoil(cache):
        cache.past["past_key_values.1.value"] += 0.5

    row = _rows(states, Tampered(engine, spoil=spoil))["present"]
    assert not row.ok
    assert row.where is not None
    assert row.where.output == "present.1.value"


def test_forwards_that_store_nothing_say_nothing_about_the_cache(states, engine):
    denoising = [state for state in states if not state.stores]
    assert denoising
    assert "present" not in _rows(denoising, engine)


def test_generations_that_part_are_named():
    row = compare_generations([(1, 2), (1, 2, 3)], [(1, 2), (1, 5, 3)], (4, 7), EXACT)
    assert (row.ok, row.compared, row.wrong) == (False, 5, 1)
    assert row.where == Place("generation", 1, 0, 8, (), 2, 5)


def test_generations_of_other_lengths_are_named():
    row = compare_generations([(1, 2)], [(1, 2, 3)], (4,), EXACT)
    assert not row.ok
    assert row.where == Place("generation", 0, 0, 6, (), "no token", 3)


def test_lossy_engines_may_generate_a_share_of_other_tokens():
    limits = {**EXACT, "generation": Tolerance(atol=0.25)}
    row = compare_generations([(1, 2, 3, 9)], [(1, 2, 3, 4)], (0,), limits)
    assert (row.ok, row.difference) == (True, 0.25)
    assert not compare_generations([(1, 2, 8, 9)], [(1, 2, 3, 4)], (0,), limits).ok


def test_the_row_of_the_layers_names_the_first_wrong_point_not_the_worst():
    places = [Place(f"layers.{i}", 0, 1, 3, (i,), 1.0, 2.0) for i in range(3)]
    points = tuple(
        PointError(f"layers.{i}", error, 0.0, error, error < 0.1, places[i])
        for i, error in enumerate((0.05, 0.2, 0.9))
    )
    row = layer_row(Layers("graph", 0.1, 0.3, points))
    assert (row.ok, row.compared, row.wrong, row.difference) == (False, 3, 2, 0.9)
    assert row.where == places[1]
    assert layer_row(Layers("graph", 0.1, 0.3, points[:1])).ok
