from collections import Counter

from dlmc.bench.timing import TimingEngine
from dlmc_runtime.generate import Generator


def test_forwards_are_what_the_loop_asked_for(generator, ids):
    timed = TimingEngine(generator.engine)
    result = Generator(timed, None).generate(ids(20), max_new_tokens=24, ignore_eos=True)
    kinds = Counter(forward.kind for forward in timed.forwards)
    assert kinds.total() == result.forwards
    if generator.manifest.attention.regime == "full":
        assert set(kinds) == {"denoise"}
    else:
        # Positions 16 to 43 are five and a half blocks of 8; the last needs no commit.
        assert (kinds["prefill"], kinds["commit"]) == (1, 3)
        assert timed.forwards[0].kind == "prefill"


def test_the_next_batch_may_prefill_again(generator, ids):
    timed = TimingEngine(generator.engine)
    again = Generator(timed, None)
    for _ in range(2):
        again.generate(ids(20), max_new_tokens=12, ignore_eos=True)
    kinds = [forward.kind for forward in timed.forwards]
    half = len(kinds) // 2
    assert kinds[:half] == kinds[half:]


def test_a_forward_computes_its_whole_profile(generator, ids):
    timed = TimingEngine(generator.engine)
    Generator(timed, None).generate(ids(20), max_new_tokens=8, ignore_eos=True)
    for forward in timed.forwards:
        assert forward.profile is not None
        assert forward.profile in generator.profiles
        assert forward.positions == forward.profile.batch * forward.profile.block
        assert forward.seconds > 0


def test_what_it_wraps_shows_through(generator):
    timed = TimingEngine(generator.engine)
    assert timed.manifest == generator.manifest
    assert timed.profiles == generator.profiles
