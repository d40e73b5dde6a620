"""The comparators on forwards made by hand, so that every boundary is where the test puts it."""

from dataclasses import replace

import numpy as np
import pytest

from dlmc.validate.comparators import Answer, BestTokens, CommittedSet, Numbers, margin
from dlmc.validate.recording import Choice, State
from dlmc.validate.tolerances import EXACT
from dlmc_runtime.cache import Contents
from dlmc_runtime.engines.base import Inputs, Outputs
from dlmc_runtime.manifest import Profile, Tolerance
from dlmc_runtime.samplers.base import BlockState
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.task import Task

COUNT = 4
STRICT = {**EXACT, "sampled_logit": Tolerance(atol=0.05), "logsumexp": Tolerance(atol=0.05)}
STRICT["top_logits"] = Tolerance(atol=0.05)
STEADY = SamplerConfig("low_confidence", steps=2)  # two of four masks a forward


def _outputs(confidence, tokens=(10, 11, 12, 13), gap=1.0):
    """A head that is this sure of these tokens, and less of the next by ``gap``."""
    logit = np.log(np.array([confidence], np.float64)).astype(np.float32)
    ids = np.array([tokens], np.int64)
    zeros = np.zeros((1, COUNT), np.float32)
    return Outputs(
        top_ids=np.stack([ids, ids + 100], -1),
        top_logits=np.stack([logit, logit - np.float32(gap)], -1),
        logsumexp=zeros,
        entropy=zeros,
        tempered_logsumexp=zeros,
        tempered_entropy=zeros,
        sampled_id=ids,
        sampled_logit=logit,
    )


def _state(outputs, sampler=STEADY, masked=(True,) * COUNT, noise=None):
    inputs = Inputs(Profile(batch=1, block=COUNT, cache=0, rows=COUNT))
    inputs.head_rows[0] = np.arange(COUNT)
    inputs.position_ids[0] = np.arange(20, 20 + COUNT)
    block = BlockState(np.array(masked), 0, int(sum(masked)))
    return State(
        prompt=1,
        forward=3,
        inputs=inputs,
        past=Contents({}, np.zeros(1, np.int64)),
        size=0,
        capacities={},
        stores=(),
        outputs=outputs,
        kept={},
        task=Task("denoise", 20, 24, 20, 24),
        canvas=np.zeros(24, np.int64),
        masked=np.zeros(24, np.bool_),
        choice=Choice(sampler, block, noise),
    )


def _committed(ours, reference, **options):
    state = _state(reference, **options)
    found = CommittedSet(STRICT)(
        Answer(state, ours, {}, "engine"), Answer(state, reference, {}, "reference")
    )
    return found["committed"]


def test_equal_outputs_commit_the_same():
    found = _committed(_outputs((0.9, 0.5, 0.4, 0.1)), _outputs((0.9, 0.5, 0.4, 0.1)))
    assert (found.compared, found.wrong, found.place) == (2, 0, None)
    assert found


def test_another_set_is_named_with_its_first_position_and_what_each_side_does():
    found = _committed(_outputs((0.9, 0.1, 0.6, 0.2)), _outputs((0.9, 0.5, 0.2, 0.1)))
    assert (found.compared, found.wrong) == (3, 2)
    assert not found
    assert found.place is not None
    assert (found.place.prompt, found.place.forward, found.place.position) == (1, 3, 21)
    assert (found.place.ours, found.place.reference) == ("masked", 11)


def test_a_close_call_of_the_reference_is_not_counted():
    # 0.50 against 0.48: within exp(0.1), so either may be the second to be committed.
    found = _committed(_outputs((0.9, 0.48, 0.50, 0.1)), _outputs((0.9, 0.50, 0.48, 0.1)))
    assert (found.compared, found.wrong) == (3, 0)


def test_a_call_that_is_not_close_is_counted_even_if_the_engine_calls_it_close():
    found = _committed(_outputs((0.9, 0.48, 0.50, 0.1)), _outputs((0.9, 0.50, 0.30, 0.1)))
    assert found.wrong == 2


@pytest.mark.parametrize(("confidence", "wrong"), [(0.87, 0), (0.70, 1)])
def test_a_threshold_is_a_boundary_too(confidence, wrong):
    sampler = SamplerConfig("low_confidence", threshold=0.9)
    found = _committed(
        _outputs((0.99, 0.91, 0.1, 0.1)), _outputs((0.99, confidence, 0.1, 0.1)), sampler=sampler
    )
    assert found.wrong == wrong


def test_another_token_at_a_committed_position_is_counted_where_the_reference_is_sure():
    reference = _outputs((0.9, 0.5, 0.4, 0.1))
    found = _committed(_outputs((0.9, 0.5, 0.4, 0.1), tokens=(10, 77, 12, 13)), reference)
    assert found.wrong == 1
    assert found.place is not None
    assert (found.place.ours, found.place.reference) == (77, 11)
    unsure = _outputs((0.9, 0.5, 0.4, 0.1), gap=0.09)  # no more than twice the tolerance
    assert not _committed(_outputs((0.9, 0.5, 0.4, 0.1), tokens=(10, 77, 12, 13)), unsure).wrong


def test_another_token_at_a_position_that_nobody_commits_is_not():
    ours = _outputs((0.9, 0.5, 0.4, 0.1), tokens=(10, 11, 77, 77))
    assert not _committed(ours, _outputs((0.9, 0.5, 0.4, 0.1))).wrong


def test_an_engine_that_answers_nan_commits_nothing():
    ours = replace(_outputs((0.9, 0.5, 0.4, 0.1)), logsumexp=np.full((1, COUNT), np.nan))
    assert _committed(ours, _outputs((0.9, 0.5, 0.4, 0.1))).wrong == 2


def test_an_engine_with_huge_logits_is_compared_without_a_warning():
    ours = replace(_outputs((0.9, 0.5, 0.4, 0.1)), sampled_logit=np.full((1, COUNT), 1e6, "f4"))
    assert _committed(ours, _outputs((0.9, 0.5, 0.4, 0.1))).wrong


def test_a_random_order_depends_on_the_noise_alone():
    sampler = SamplerConfig("random", steps=2)
    noise = np.array([0.1, 0.9, 0.8, 0.2])
    found = _committed(
        _outputs((0.1, 0.2, 0.9, 0.9)),
        _outputs((0.9, 0.5, 0.4, 0.1)),
        sampler=sampler,
        noise=noise,
    )
    assert (found.compared, found.wrong) == (2, 0)


def test_a_forward_that_only_stores_commits_nothing():
    outputs = _outputs((0.9, 0.5, 0.4, 0.1))
    state = replace(_state(outputs), choice=None)
    answer = Answer(state, outputs, {}, "engine")
    assert not CommittedSet(STRICT)(answer, answer)


@pytest.mark.parametrize(("gap", "compared"), [(0.09, 0), (0.11, COUNT)])
def test_ids_may_change_places_within_twice_the_tolerance(gap, compared):
    reference = _outputs((0.9, 0.5, 0.4, 0.1), gap=gap)
    state = _state(reference)
    ours = _outputs((0.9, 0.5, 0.4, 0.1), tokens=(1, 2, 3, 4))
    found = BestTokens(STRICT)(Answer(state, ours, {}, "a"), Answer(state, reference, {}, "b"))
    assert (found["top_ids"].compared, found["top_ids"].wrong) == (compared, compared)
    assert (found["sampled_id"].compared, found["sampled_id"].wrong) == (compared, compared)


def test_logits_of_different_draws_are_not_compared():
    wanted = _outputs([0.9, 0.8, 0.7, 0.6])
    other = wanted.sampled_id.copy()
    other[0, 1] = 99
    logit = wanted.sampled_logit.copy()
    logit[0, 1:3] += 5
    found = replace(wanted, sampled_id=other, sampled_logit=logit)
    state = _state(wanted)
    answers = Answer(state, found, {}, "ours"), Answer(state, wanted, {}, "reference")
    numbers = Numbers(STRICT)(*answers)["sampled_logit"]
    assert numbers.place is not None
    assert (numbers.wrong, numbers.place.position) == (1, 22)
    assert BestTokens(STRICT)(*answers)["sampled_id"].wrong == 1


def test_one_candidate_is_always_sure():
    outputs = _outputs((0.9, 0.5, 0.4, 0.1))
    one = replace(outputs, top_logits=outputs.top_logits[..., :1])
    assert np.isinf(margin(one)).all()


def test_answers_carry_the_graphs_names():
    outputs = _outputs((0.9, 0.5, 0.4, 0.1))
    kept = {"past_key_values.0.key": np.zeros((2, 4, 8), np.float32)}
    answer = Answer(_state(outputs), outputs, kept, "engine")
    assert "present.0.key" in answer
    assert answer.runner_name == "engine"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("entropy", {"steps": 2}),
        ("topk_margin", {"steps": 2}),
        ("entropy_bounded", {"gamma": 0.5}),
        ("maskgit_plus", {"steps": 2, "alg_temp": 0.5}),
        ("credit", {}),
    ],
)
def test_every_order_of_positions_is_compared(name, parameters):
    options = {"sampler": SamplerConfig(name, **parameters), "noise": np.full(COUNT, 0.5)}
    same = _outputs((0.9, 0.5, 0.4, 0.1))
    found = _committed(same, same, **options)
    assert found
    assert found.compared >= 1


def test_an_entropy_that_differs_commits_other_positions():
    graded = np.array([[0.1, 0.9, 2.0, 3.0]], np.float32)
    ours, reference = (
        replace(_outputs((0.9, 0.5, 0.4, 0.1)), entropy=entropy)
        for entropy in (graded, graded[:, ::-1])
    )
    sampler = SamplerConfig("entropy", steps=2)
    assert not _committed(ours, reference, sampler=sampler)
    assert _committed(ours, ours, sampler=sampler)
