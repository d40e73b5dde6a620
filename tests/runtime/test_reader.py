from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlmc_runtime.events import Committed, Finished, TokenLogprob
from dlmc_runtime.reader import Reader
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.base import Prediction
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.stop import StopRule

EOS = 60
NOTHING: Any = None  # what no regime of these rows looks at


@pytest.fixture(scope="session")
def read(manifest, codec):
    """Generate ``tokens`` with a row and return the events of each forward."""

    def run(tokens, stop=(), with_codec=True, confidence=None, keep_cache=False):
        text = codec if with_codec else None
        rule = StopRule(frozenset([EOS]), tuple(stop), codec.decode if with_codec else None)
        sampler = SamplerConfig(name="low_confidence", block_length=len(tokens))
        request = Request((1,), len(tokens), sampler, stop=rule, keep_cache=keep_cache)
        row = Row(request, manifest("full"))
        reader, events = Reader(row, text, 3), []
        prediction = Prediction(
            np.array(tokens, np.int64),
            np.linspace(0.9, 0.1, len(tokens)) if confidence is None else np.array(confidence),
        )
        while not row.finished:
            row.done(row.task(99), prediction, NOTHING)
            events.append(list(reader.advance(0.25)))
        assert list(reader.advance(0.5)) == []  # nothing follows a result
        return events

    return run


def texts(events):
    return [event.text for step in events for event in step if isinstance(event, Committed)]


def result(events):
    assert isinstance(events[-1][-1], Finished)
    return events[-1][-1].result


def test_tokens_are_reported_as_they_become_final(read, codec):
    ids = codec.encode("abc")
    events = read(ids)
    expected = [Committed(3, (i,), c) for i, c in zip(ids, "abc", strict=True)]
    assert [step[0] for step in events] == expected
    found = result(events)
    assert (found.text, found.tokens, found.finish_reason) == ("abc", tuple(ids), "length")
    assert (found.prompt_tokens, found.forwards, found.seconds) == (1, 3, 0.25)


def test_nothing_is_reported_before_what_precedes_it(read, codec):
    events = read(codec.encode("abc"), confidence=[0.1, 0.5, 0.9])
    assert events[:2] == [[], []]
    assert texts(events) == ["abc"]


def test_a_character_is_reported_whole(read, codec):
    events = read(codec.encode("a🙂b"))
    assert texts(events) == ["a", "", "", "", "🙂", "b"]
    assert result(events).text == "a🙂b"


def test_half_a_character_at_the_end_is_shown_as_such(read, codec):
    events = read(codec.encode("a🙂")[:-1])
    assert result(events).text == "a\ufffd"
    assert "".join(texts(events)) == "a\ufffd"


def test_what_may_become_a_stop_string_is_held_back(read, codec):
    events = read(codec.encode("abcabd"), stop=["abd"])
    assert texts(events) == ["", "", "a", "b", "c", ""]
    assert result(events).text == "abc"
    assert result(events).finish_reason == "stop"
    assert len(result(events).tokens) == 6  # the tokens that complete the stop string count


@pytest.mark.parametrize("stop", ["abcdefgh", "abcdefghijkl", "cdefghijkl"])
def test_a_text_that_is_shorter_than_a_stop_string_is_held_back_whole(read, codec, stop):
    text = "abcdefghijkl"
    events = read(codec.encode(text), stop=[stop])
    assert "".join(texts(events)) == result(events).text == text.partition(stop)[0]


def test_what_was_held_back_is_reported_at_the_end(read, codec):
    events = read(codec.encode("abcab"), stop=["abd"])
    assert texts(events)[-1] == "cab"
    assert result(events).text == "abcab"


def test_a_stop_id_is_not_part_of_the_answer(read, codec):
    found = result(read([*codec.encode("ab"), EOS, *codec.encode("cd")]))
    assert (found.text, len(found.tokens), found.finish_reason) == ("ab", 2, "stop")
    assert result(read([EOS, EOS])).tokens == ()


def test_tokens_stream_without_a_tokenizer(read):
    events = read([5, 6, 7], with_codec=False)
    assert [step[0] for step in events] == [Committed(3, (i,), "") for i in (5, 6, 7)]
    assert result(events).text == ""


TEXT = st.text("ab é🙂€", max_size=8)


@given(
    TEXT.filter(bool),
    st.integers(0, 3),
    st.lists(st.text("ab é🙂", min_size=1, max_size=9), max_size=3),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_streamed_text_is_the_text(read, codec, text, cut, stop, with_eos, keep_cache, random):
    tokens = codec.encode(text) + ([EOS] if with_eos else [])
    tokens = tokens[: max(len(tokens) - cut, 1)]  # often in the middle of a character
    order = [random.random() for _ in tokens]
    events = read(tokens, stop=stop, confidence=order, keep_cache=keep_cache)
    found = result(events)
    assert "".join(texts(events)) == found.text
    streamed = [t for step in events for e in step if isinstance(e, Committed) for t in e.tokens]
    assert tuple(streamed) == found.tokens
    assert found.tokens == tuple(tokens[: len(found.tokens)])
    ending = StopRule(frozenset([EOS]), tuple(stop), codec.decode).find(tokens)
    if ending is None:
        assert (found.text, found.finish_reason) == (codec.decode(tokens), "length")
        assert found.tokens == tuple(tokens)
    else:
        wanted = codec.decode(found.tokens) if ending.text is None else ending.text
        assert (found.text, found.finish_reason) == (wanted, "stop")
        assert len(found.tokens) == ending.tokens
    assert not [string for string in stop if string in found.text]


@pytest.mark.parametrize(("resumed", "cached"), [(0, 0), (4, 4), (7, 6)])
def test_the_result_tells_how_much_of_the_prompt_another_row_has_stored(
    manifest, codec, resumed, cached
):
    row = Row(Request((1,) * 6, 4, SamplerConfig("sequential")), manifest())
    row.resumed, row.finished = resumed, True
    (event,) = Reader(row, codec, 0).advance(0.5)
    assert isinstance(event, Finished)
    assert (event.result.cached_tokens, event.result.prompt_tokens) == (cached, 6)


def test_probabilities_are_those_of_the_tokens_that_count(manifest, codec):
    row = Row(Request((1,), 4, SamplerConfig("sequential"), logprobs=0), manifest())
    told = {position: TokenLogprob(5, -0.5, position, ()) for position in (1, 2, 3, 4)}
    row.logprobs = {position: told[position] for position in (3, 2, 1, 4)}
    row.masked[:] = False
    row.canvas[1:5] = [5, 5, EOS, 5]
    row.request = replace(row.request, stop=StopRule(frozenset([EOS])))
    row.look_for_end()
    row.finished = True
    *_, event = Reader(row, codec, 0).advance(0.5)
    assert isinstance(event, Finished)
    assert event.result.tokens == (5, 5)
    assert event.result.logprobs == (told[1], told[2])
