import pytest

from dlmc.bench.generation import Answer, EngineContestant, Generation, Run, race
from dlmc.bench.timing import Forward
from dlmc_runtime.manifest import Profile
from dlmc_runtime.row import Request
from dlmc_runtime.samplers.config import SamplerConfig

PROFILE = Profile(batch=2, block=8, cache=16, rows=8)
REQUEST = Request((1,), 4, SamplerConfig())
FORWARDS = (
    Forward("prefill", 16, 0.5, PROFILE),
    Forward("denoise", 16, 0.25, PROFILE),
    Forward("denoise", 16, 0.25, PROFILE),
    Forward("commit", 16, 0.5, PROFILE),
)


def test_speeds_are_counts_over_seconds():
    made = Generation(Answer(tuple(range(6)), FORWARDS), 2.0, 1.2, (1.0, 1.0))
    assert made.tokens_per_forward == 1.5
    assert made.useful_per_second == 3.0
    assert made.computed_per_second == 32.0
    assert made.own_share == pytest.approx(0.25)


class Counting:
    """Needs ``length`` forwards; its first block is final after two."""

    def __init__(self, name, length, log):
        self.name, self.length, self.log = name, length, log

    def turns(self, request):
        for turn in range(1, self.length + 1):
            self.log.append(f"{self.name}{turn}")
            yield turn >= 2
        return Answer((7,) * self.length, ())


def test_contestants_take_turns_until_all_are_done():
    log: list[str] = []
    made = race([Counting("a", 3, log), Counting("b", 5, log)], REQUEST, count=2)
    assert log == ["a1", "a2", "b1", "b2", "a3", "b3", "b4", "b5"]
    assert [len(one.answer.tokens) for one in made] == [3, 5]
    assert [len(one.turns) for one in made] == [2, 3]
    for one in made:
        assert 0 < one.first_block <= one.seconds == pytest.approx(sum(one.turns))


def test_whole_answers_one_after_the_other():
    log: list[str] = []
    made = race([Counting("a", 2, log), Counting("b", 1, log)], REQUEST)
    assert log == ["a1", "a2", "b1"]
    assert [len(one.turns) for one in made] == [1, 1]
    assert made[1].first_block == made[1].seconds  # it ended before a block was full


def test_the_end_of_a_run_is_no_turn_of_its_own():
    run = Run(Counting("a", 4, []), REQUEST)
    run.advance(2)
    run.advance(2)
    with pytest.raises(RuntimeError):
        _ = run.result
    run.advance(2)
    assert len(run.result.turns) == 2


def test_an_engine_answers_as_its_generator_does(generator, ids):
    request = generator.request(ids(20), max_new_tokens=24, ignore_eos=True)
    (result,) = generator.run([request])
    for made in (
        race([EngineContestant("ours", generator)], request, count)[0] for count in (None, 2)
    ):
        assert made.answer.tokens == result.tokens
        assert len(made.answer.forwards) == result.forwards
        assert made.tokens_per_forward == result.tokens_per_forward
        assert 0 < made.own_share < 1
        assert 0 < made.first_block < made.seconds
