import pytest

from dlmc.validate.prompts import Wanted, ask
from dlmc.validate.reference import Reshaped
from dlmc.validate.sources import load_text
from dlmc_runtime.errors import RequestError
from dlmc_runtime.generate import Generator
from dlmc_runtime.manifest import Profile


def _generator(reference, bundle, *profiles):
    return Generator(Reshaped(reference, "torch", profiles), load_text(bundle))


LARGE = (
    Profile(batch=1, block=4, cache=256, rows=4),
    Profile(batch=1, block=32, cache=256, rows=1),
)


def test_a_bundle_without_a_tokenizer_is_asked_two_arbitrary_prompts(bundle, reference):
    asked = ask(_generator(reference, bundle, *LARGE), Wanted())
    assert [len(one.request.prompt) for one in asked] == [5, 12]
    suppressed = set(bundle.manifest.tokens.suppressed)
    assert not suppressed & {token for one in asked for token in one.request.prompt}
    assert asked == ask(_generator(reference, bundle, *LARGE), Wanted())  # the same every time
    assert asked[0].shown == f"ids {[*asked[0].request.prompt]}"


def test_a_bundle_with_a_tokenizer_is_asked_questions_in_its_template(trained, reference):
    generator = Generator(Reshaped(reference, "torch", LARGE), load_text(trained))
    asked = ask(generator, Wanted(questions=1))
    assert len(asked) == 1
    assert "What is 12 + 7?" in asked[0].shown
    assert asked[0].shown != "What is 12 + 7?"


def test_requests_are_greedy_and_go_on_to_their_length(bundle, reference):
    (asked,) = ask(_generator(reference, bundle, *LARGE), Wanted(questions=1))
    assert asked.request.sampler.temperature == 0.0
    assert not asked.request.stop.ids
    assert asked.request.max_new_tokens == min(64, bundle.manifest.max_new_tokens)


def test_fewer_tokens_are_asked_where_more_do_not_fit(bundle, reference):
    small = Profile(batch=1, block=4, cache=16, rows=4)
    (asked,) = ask(_generator(reference, bundle, small), Wanted(questions=1))
    assert 1 <= asked.request.max_new_tokens < 16


def test_a_prompt_that_fits_nowhere_is_refused(bundle, reference):
    tiny = Profile(batch=1, block=4, cache=0, rows=4)
    with pytest.raises(RequestError, match="cached positions"):
        ask(_generator(reference, bundle, tiny), Wanted())


def test_a_length_that_was_asked_for_is_not_shortened(bundle, reference):
    (asked,) = ask(_generator(reference, bundle, *LARGE), Wanted(max_new_tokens=7, questions=1))
    assert asked.request.max_new_tokens == 7


def test_own_prompts_take_the_place_of_the_questions(trained, reference):
    generator = Generator(Reshaped(reference, "torch", LARGE), load_text(trained))
    asked = ask(generator, Wanted(("1+1=?", "2+2=?"), max_new_tokens=4))
    assert [one.shown for one in asked] == ["1+1=?", "2+2=?"]
