import pytest

pytest.importorskip("torch", reason="the benchmark compares with torch")

import dual_cache
from dlmc.bench.generation import Answer, Generation
from dlmc.bench.timing import Forward
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig
from dual_cache import Entry, check, disagreement, row


class Named:
    def __init__(self, name):
        self.name = name

    def turns(self, request):
        yield True
        return answer((4, 5))


def answer(tokens, forwards=22):
    return Answer(tuple(tokens), (Forward("denoise", 8, 0.5),) * forwards)


def generation(tokens, forwards=22, seconds=16.0):
    return Generation(answer(tokens, forwards), seconds, 1.0, (seconds / 2,) * 2)


def entry(name, cache="dual"):
    return Entry(Named(name), "float32", Request((1,), 2, SamplerConfig(cache=cache)))


FIELD = [entry("engine"), entry("engine", "none"), entry("torch")]


def test_answers_that_agree():
    assert disagreement(answer([1, 2]), answer([1, 2])) is None
    check(FIELD, [generation([1, 2]), generation([7, 7]), generation([1, 2])])


def test_what_differs_is_said():
    assert disagreement(answer([1, 2, 3]), answer([1, 9, 9])) == "2 of 3 tokens, the first at 1"
    assert disagreement(answer([1], 2), answer([1], 3)) == "2 and 3 forwards"


def test_other_tokens_end_the_program():
    with pytest.raises(SystemExit, match="differ with the dual cache in float32: 1 of 2"):
        check(FIELD, [generation([1, 2]), generation([1, 2]), generation([1, 3])])


def test_other_steps_end_the_program():
    with pytest.raises(SystemExit, match="not everyone made as many forwards"):
        check(FIELD, [generation([1, 2]), generation([1, 2], 21), generation([1, 2])])


def test_a_row_compares_with_the_dual_cache():
    found = dict(
        zip(
            dual_cache.COLUMNS,
            (*row(FIELD[1], generation([1] * 44, seconds=32.0), generation([1] * 44)), 0.0),
            strict=True,
        )
    )
    assert (found["cache"], found["tokens per forward"]) == ("none", 2.0)
    assert found["dual engine faster by"] == found["lowest"] == found["highest"] == 2.0


def test_everyone_takes_part():
    made = dual_cache.race(FIELD)
    assert [one.answer.tokens for one in made] == [(4, 5)] * 3
