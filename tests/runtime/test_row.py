import numpy as np
import pytest

from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.base import EditIds, Prediction, Rewritten
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule
from dlmc_runtime.task import Task

MASK, EOS = 63, 60


@pytest.fixture
def row(manifest):
    def make(prompt, count, regime="block", block_length=4, uniforms=None, **request):
        sampler = SamplerConfig(**request.pop("sampler", {"name": "sequential", "steps": 1}))
        asked = Request(tuple(prompt), count, sampler, **request)
        return Row(asked, manifest(regime, block_length), uniforms)

    return make


def answer(row, tokens, confidence=0.5):
    """Let the sampler see ``tokens`` for the active block."""
    count = row.end - row.start
    tokens = np.resize(np.array(tokens, np.int64), count)
    sure = np.resize(np.array(confidence, np.float64), count)
    row.done(row.task(99), Prediction(tokens, sure), None)


def store(row, chunk=99):
    """Go through a forward that only stores."""
    task = row.task(chunk)
    assert task.kind in ("prefill", "commit")
    row.done(task, Prediction(np.array([0]), np.array([0.5])), None)


def denoise(start, end, head_start, head_end, visible=0, **other):
    return Task("denoise", start, end, head_start, head_end, visible=visible, **other)


def stored(kind, start, end):
    count = end - start
    return Task(kind, start, end, end - 1, end, own="blocks", visible=start, at=start, kept=count)


def needs(row):
    return (row.regime.cache_needed, row.regime.block_needed, row.regime.head_needed)


def test_the_full_regime_denoises_the_whole_canvas_block_by_block(row):
    one = row(range(5), 6, regime="full")
    assert one.canvas.tolist() == [0, 1, 2, 3, 4, *[MASK] * 6]
    assert needs(one) == (0, 11, 4)
    assert row(range(5), 3, regime="full").regime.head_needed == 3
    assert one.task(99) == denoise(0, 11, 5, 9)
    answer(one, [10, 11, 12, 13])
    assert one.task(99) == denoise(0, 11, 9, 11)  # the rest: two positions
    assert one.answer() == [10, 11, 12, 13]
    answer(one, [14, 15])
    assert one.finished
    assert one.answer() == [10, 11, 12, 13, 14, 15]
    assert one.forwards == 2


def test_the_block_regime_prefills_whole_blocks_of_the_prompt(row):
    one = row(range(10), 5)
    assert len(one.canvas) == 16  # 15 positions, rounded up to blocks
    assert needs(one) == (12, 4, 4)
    assert one.task(4) == stored("prefill", 0, 4)
    assert one.task(7) == stored("prefill", 0, 4)  # whole blocks only
    assert one.task(99) == stored("prefill", 0, 8)
    store(one, 4)
    assert one.task(99) == stored("prefill", 4, 8)
    store(one)
    assert one.task(99) == denoise(8, 12, 8, 12, 8)  # begins with two prompt tokens
    assert (one.masks, one.step) == (2, 0)


def test_a_full_block_is_committed_before_the_next(row):
    one = row([7], 6)
    assert one.task(4) == denoise(0, 4, 0, 4)
    answer(one, [10, 11, 12, 13])
    assert one.canvas[:4].tolist() == [7, 11, 12, 13]  # the prompt is left alone
    task = one.task(4)
    assert task == stored("commit", 0, 4)
    store(one)
    assert one.cached == 4
    assert one.task(4) == denoise(4, 8, 4, 8, 4)
    answer(one, [14, 15, 16, 17])
    assert one.finished  # the last block needs no commit
    assert one.answer() == [11, 12, 13, 14, 15, 16]
    assert one.forwards == 3


def test_the_schedule_moves_on_with_every_forward(row):
    sampler = {"name": "low_confidence", "steps": 3, "block_length": 7}
    one, left = row([1], 14, regime="full", sampler=sampler), []
    while not one.finished:
        answer(one, [2])
        left.append(int(one.masked.sum()))
    assert left == [11, 9, 7, 4, 2, 0]  # 7 over 3 steps: 3, 2, 2, and again from the start


def test_keep_cache_commits_the_last_block_too(row):
    one = row([7], 3, keep_cache=True)
    assert one.regime.cache_needed == 4
    answer(one, [0, 11, 12, 13])
    assert not one.finished
    store(one)
    assert one.finished
    assert one.answer() == [11, 12, 13]


@pytest.mark.parametrize("prompt", [range(1), range(3), range(4), range(5), range(8)])
def test_the_cache_never_needs_more_than_was_promised(row, prompt):
    for keep_cache in (False, True):
        one = row(prompt, 7, keep_cache=keep_cache)
        while not one.finished:
            task = one.task(4)
            assert one.cached <= one.regime.cache_needed
            if task.kind == "denoise":
                answer(one, [1])
            else:
                store(one)
        assert one.cached == one.regime.cache_needed


def test_a_row_ends_at_a_stop_id_as_soon_as_everything_before_it_is_known(row):
    sampler = {"name": "low_confidence_static"}
    one = row([7], 7, sampler=sampler, stop=StopRule(frozenset([EOS])))
    tokens = [7, 10, EOS, 11]
    answer(one, tokens, [0, 0.1, 0.9, 0.5])
    assert one.answer() == []  # the stop id is known, the token before it is not
    assert not one.finished
    answer(one, tokens, [0, 0.9, 0.1, 0.5])
    assert one.finished
    assert one.answer() == [10, EOS]
    assert one.ending.tokens == 1


def test_keep_cache_finishes_the_block_an_answer_ends_in(row):
    sampler = {"name": "low_confidence_static"}
    one = row([7], 7, sampler=sampler, stop=StopRule(frozenset([EOS])), keep_cache=True)
    answer(one, [0, EOS, 10, 11])
    assert one.ending.tokens == 0
    assert not one.finished
    answer(one, [0, EOS, 10, 11])
    answer(one, [0, EOS, 10, 11])
    assert one.task(4).kind == "commit"
    store(one)
    assert one.finished
    assert one.ending.tokens == 0


def test_without_early_exit_the_block_of_the_stop_id_is_filled_and_not_stored(row):
    sampler = {"name": "low_confidence_static"}
    stop = StopRule(frozenset([EOS]))
    one = row([7], 11, sampler=sampler, stop=stop, early_exit=False)
    for sure in ([0, 0.9, 0.1, 0.5], [0, 0.9, 0.1, 0.5], [0, 0.9, 0.1, 0.5]):
        assert not one.finished
        answer(one, [7, EOS, 10, 11], sure)
    assert one.finished
    assert (one.ending.tokens, one.cached, one.forwards) == (0, 0, 3)
    assert one.canvas[:4].tolist() == [7, EOS, 10, 11]


def test_nothing_is_reopened_at_the_limit_of_steps(row, monkeypatch):
    one = row([7], 3, regime="full", sampler={"name": "wino", "steps": 2})
    reopened = np.array([False, True, False])
    monkeypatch.setattr(one.sampler, "select", lambda _, block: block.masked & [False, True, True])
    monkeypatch.setattr(one.sampler, "reopen", lambda *_: reopened)
    answer(one, [10, 11, 12])
    assert one.masked.tolist() == [False, True, True, False]
    answer(one, [10, 11, 12])
    assert not one.masked.any()
    assert one.forced


EDITING = {"name": "token_editing", "threshold": 0.5, "edit_threshold": 0.5}


def test_nothing_of_a_block_is_final_while_it_may_be_edited(row):
    one = row([7], 7, sampler=EDITING, stop=StopRule(frozenset([EOS])))
    answer(one, [7, EOS, 10, 11], 0.9)
    assert (one.masked[:4].any(), one.open, one.known) == (False, True, 1)
    assert (one.ending, one.finished, one.answer()) == (None, False, [])
    answer(one, [7, 12, 10, 11], 0.9)  # the end of text is edited away
    assert (one.ending, one.answer()) == (None, [])
    assert one.task(4).kept == 4
    answer(one, [7, 12, 10, 11], 0.9)
    assert (one.ending, one.answer()) == (None, [12, 10, 11])
    assert (one.cached, one.start, one.open) == (4, 4, True)


def test_a_stop_id_that_stays_ends_the_text_with_its_block(row):
    one = row([7], 7, sampler=EDITING, stop=StopRule(frozenset([EOS])))
    answer(one, [7, 10, EOS, 11], 0.9)
    assert not one.finished
    answer(one, [7, 10, EOS, 11], 0.9)
    assert (one.finished, one.forwards, one.ending.tokens) == (True, 2, 1)


def test_positions_beyond_the_answer_may_still_change_it(row):
    one = row([7], 2, sampler=EDITING)
    answer(one, [7, 10, 11, 12], [0.9, 0.9, 0.9, 0.4])
    assert (one.masked.tolist(), one.finished) == ([False, False, False, True], False)
    answer(one, [7, 10, 13, 12], 0.9)
    answer(one, [7, 10, 13, 12], 0.9)
    assert (one.finished, one.answer()) == (True, [10, 13])


def test_what_the_last_forward_changed_is_fed_once_more_to_be_stored(row):
    one = row([7], 7, sampler=EDITING | {"max_post_steps": 1})
    answer(one, [7, 10, 11, 12], 0.9)
    assert one.task(4).kept == 4
    answer(one, [7, 10, 13, 12], 0.9)  # at the limit, it changes its mind
    assert (one.open, one.cached) == (False, 0)
    assert one.task(4).kind == "commit"
    store(one)
    assert (one.cached, one.start, one.answer()) == (4, 4, [10, 13, 12])


def test_a_window_without_masks_is_not_edited(row):
    one = row([7, 8, 9], 3, sampler=EDITING)
    one.enter(0, 3)
    assert not one.open
    one.enter(0, 4)
    assert one.open


def test_the_last_forward_of_an_edited_block_may_be_forced(row, monkeypatch):
    one = row([7], 3, sampler=EDITING)
    after = Rewritten(np.array([7, 1, 2, 3]), np.zeros(4, bool), final=True, forced=True)
    monkeypatch.setattr(one.sampler, "rewrite", lambda *_: after)
    answer(one, [0])
    assert (one.forced, one.finished, one.answer()) == (True, True, [1, 2, 3])


def test_a_model_that_deletes_and_inserts_says_with_which_ids(row, manifest):
    assert row([7], 3).state().edits is None
    made = manifest("block")
    tokens = made.tokens.model_copy(update={"delete": 1, "split": 2})
    asked = Request((7,), 3, SamplerConfig("levenshtein"))
    one = Row(asked, made.model_copy(update={"tokens": tokens}))
    assert one.state().edits == EditIds(mask=MASK, delete=1, split=2)


def test_given_positions_at_a_blocks_start_are_final_although_the_sampler_revises(row):
    one = row(range(2), 6, regime="full", sampler={"name": "wino", "block_length": 3})
    assert (one.start, one.firm) == (2, 2)
    one.pinned[2] = True
    one.enter(2, 5)
    assert one.firm == 3
    one.pinned[2:5] = True
    one.enter(2, 5)
    assert one.firm == 5


def test_a_stop_id_in_the_prompt_does_not_end_the_answer(row):
    one = row([EOS, EOS], 2, stop=StopRule(frozenset([EOS])))
    answer(one, [0, 0, 10, 11])
    assert one.ending is None
    assert one.answer() == [10, 11]


def test_mask_ids_of_the_prompt_are_not_denoised(row):
    for regime in ("full", "block"):
        one = row([MASK, 5, MASK], 1, regime=regime)
        answer(one, [20, 21, 22, 23])
        assert one.canvas[:3].tolist() == [MASK, 5, MASK]
        assert one.finished


def test_drawn_numbers_stay_below_one(row):
    class Ones:
        def random(self, size):
            return np.full(size, 1 - 1e-12)  # float32 would round it to 1

    hot = {"name": "sequential", "temperature": 1.0}
    drawn = row([1], 4, uniforms=Ones(), sampler=hot).draw(4)
    assert drawn.dtype == np.float32
    assert (drawn < 1).all()


def test_a_seed_fixes_the_numbers(row):
    hot = {"name": "sequential", "temperature": 1.0}
    first, again, other = (row([1], 4, sampler=hot, seed=s).draw(4).tolist() for s in (5, 5, 6))
    assert first == again != other


def test_a_request_may_choose_the_block_length(row):
    sampler = {"name": "low_confidence", "block_length": 2}
    assert row([1, 2, 3], 5, regime="full", sampler=sampler).task(9).head_end == 5
