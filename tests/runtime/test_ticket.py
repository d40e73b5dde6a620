import functools
import threading

import numpy as np
import pytest

from dlmc_runtime.errors import EngineError, RequestError
from dlmc_runtime.events import Committed, Denoised, Event, Failed, Finished, Result
from dlmc_runtime.row import Request, Row
from dlmc_runtime.samplers.config import SamplerConfig
from dlmc_runtime.ticket import Ticket

RESULT = Result("", (1,), 1, 1, "length", 0.0, 1.0)


class Watched(Ticket):
    """A ticket that lists what it did, in ``told`` and ``woken``."""

    def __init__(self, row, listener, seconds):
        self.told: list[Event] = []
        self.woken: list[int] = []
        wake = functools.partial(self.woken.append, 1)
        super().__init__(row, (4, 48), listener or self.told.append, wake, seconds)


@pytest.fixture
def ticket(manifest):
    """Make a ticket: ``ticket(listener, seconds)``."""

    def make(listener=None, seconds=None):
        row = Row(Request((1,), 4, SamplerConfig("sequential")), manifest())
        return Watched(row, listener, seconds)

    return make


def test_it_takes_note_of_when_things_happen(ticket):
    one = ticket(seconds=5.0)
    assert one.deadline == one.submitted + 5.0
    assert (one.admitted, one.first_block, one.ended, one.done) == (None, None, None, False)
    nothing = np.zeros(1, np.int64)
    picture = Denoised(0, 1, 0, 1, nothing, nothing.astype(bool), nothing.astype(float))
    one.tell(picture)
    assert one.first_block is None  # nothing is final yet
    one.tell(Committed(0, (1,), ""))
    first = one.first_block
    assert first >= one.submitted
    one.tell(Committed(0, (2,), ""))
    one.tell(Finished(0, RESULT))
    assert one.first_block == first
    assert one.ended >= first
    assert one.done
    assert [type(event) for event in one.told] == [Denoised, Committed, Committed, Finished]
    assert one.result() is RESULT


def test_an_error_is_raised_where_the_result_is_asked_for(ticket):
    one, error = ticket(), EngineError("it broke")
    one.tell(Failed(0, error))
    assert one.done
    with pytest.raises(EngineError, match="it broke") as caught:
        one.result(1.0)
    assert caught.value is error


def test_nothing_is_told_after_the_end(ticket):
    one = ticket()
    one.tell(Failed(0, EngineError("it broke")))
    one.tell(Committed(0, (1,), ""))
    one.tell(Finished(0, RESULT))
    assert [type(event) for event in one.told] == [Failed]
    assert one.first_block is None
    with pytest.raises(EngineError, match="it broke"):
        one.result(0)


def test_two_who_tell_at_once_tell_one_end(ticket, monkeypatch):
    one, closing, go_on = ticket(), threading.Event(), threading.Event()
    close = one.close

    def slowly():
        closing.set()
        assert go_on.wait(60.0)
        close()

    monkeypatch.setattr(one, "close", slowly)
    ends = [Finished(0, RESULT), Failed(0, EngineError("it broke"))]
    threads = [threading.Thread(target=one.tell, args=[event]) for event in ends]
    threads[0].start()
    assert closing.wait(60.0)
    threads[1].start()
    threads[1].join(0.05)  # until it waits for the first, or has told as well
    go_on.set()
    for thread in threads:
        thread.join(60.0)
    assert one.told == ends[:1]
    assert one.result(0) is RESULT


def test_a_result_that_does_not_come_is_a_timeout(ticket):
    with pytest.raises(TimeoutError, match=r"did not end in 0\.01 s"):
        ticket().result(0.01)


def test_a_result_is_waited_for(ticket):
    one = ticket()
    later = threading.Timer(0.05, one.tell, [Finished(0, RESULT)])
    later.start()
    assert one.result(60.0) is RESULT
    later.join()


def test_nothing_is_told_once_it_is_cancelled(ticket):
    one = ticket()
    one.cancel()
    assert one.woken == [1]
    assert not one.done  # until it has left
    one.tell(Committed(0, (1,), ""))
    assert one.told == []
    one.close()
    assert one.done
    with pytest.raises(RequestError, match="was cancelled"):
        one.result(1.0)


def test_a_result_that_was_there_before_the_cancellation_stays(ticket):
    one = ticket()
    one.tell(Finished(0, RESULT))
    one.cancel()
    assert one.result() is RESULT


def test_who_hears_of_the_end_finds_the_result(ticket):
    seen = []
    one: Ticket = ticket(
        lambda event: seen.append((one.done, one.ended is not None, one.result(0)))
    )
    one.tell(Finished(0, RESULT))
    assert seen == [(True, True, RESULT)]


def test_a_listener_that_raises_is_told_no_more(ticket, caplog):
    told = []

    def listener(event):
        told.append(event)
        raise KeyError("a defect")

    one = ticket(listener)
    one.tell(Committed(0, (1,), ""))
    one.tell(Committed(0, (2,), ""))
    assert len(told) == 1
    assert one.cancelled
    assert "a listener failed" in caplog.text


def test_a_listener_that_raises_at_the_end_loses_no_result(ticket):
    def listener(event):
        raise KeyError("a defect")

    one = ticket(listener)
    one.tell(Finished(0, RESULT))
    assert one.result() is RESULT
