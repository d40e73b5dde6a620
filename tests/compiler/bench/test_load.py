import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from records import MANIFEST

from dlmc.bench.load import Call, InFlight, Poisson, arbitrary, asked, drive, fitting
from dlmc.bench.tasks import Task
from dlmc_runtime.errors import RequestError
from dlmc_runtime.manifest import Profile, Tokens, parse_manifest


@pytest.fixture(scope="module")
def manifest():
    return parse_manifest(json.dumps(MANIFEST).encode())


class Front:
    """Ends each request on a thread of its own, once it is let."""

    def __init__(self):
        self.open = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.sent, self.flying, self.most = [], 0, 0

    def send(self, index, done):
        with self.lock:
            self.flying += 1
            self.most = max(self.most, self.flying)
            self.sent.append(index)  # last: who sees it finds it counted

        def end():
            self.open.acquire()
            with self.lock:
                self.flying -= 1
            done()

        threading.Thread(target=end).start()

    def calls(self):
        return [Call(0.0, float(index)) for index in self.sent]


def test_arrivals_are_the_same_for_the_same_seed():
    def gaps(rate, seed, count=6):
        pace = Poisson(rate, seed)
        return [pace.gap() for _ in range(count)]

    assert gaps(2.0, 1) == gaps(2.0, 1)
    assert gaps(2.0, 1) != gaps(2.0, 2)
    np.testing.assert_allclose(gaps(2.0, 1), 2 * np.array(gaps(4.0, 1)))


def test_arrivals_have_their_rate_and_no_memory():
    pace = Poisson(5.0, 0)
    gaps = np.array([pace.gap() for _ in range(20_000)])
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() == pytest.approx(0.2, rel=0.05)  # as an exponential distribution has it


def test_the_first_arrival_is_at_once_and_others_fall_due_whoever_is_late(monkeypatch):
    now = [100.0]
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr("dlmc.bench.load.time", clock)
    pace, twin = Poisson(1.0, 3), Poisson(1.0, 3)
    pace.wait()
    first, second = twin.gap(), twin.gap()
    pace.wait()
    now[0] = 100.0 + first + second + 5.0
    pace.wait()
    assert slept == pytest.approx([0.0, first, 0.0])


def test_an_open_loop_waits_for_nobody():
    front = Front()
    sending = threading.Thread(target=drive, args=(front, 5, Poisson(1e6, 0)))
    sending.start()
    while len(front.sent) < 5:
        pass
    assert front.most == 5
    front.open.release(5)
    sending.join()


def test_a_closed_loop_keeps_so_many_in_flight():
    front = Front()
    front.open.release(20)
    calls = drive(front, 20, InFlight(3))
    assert len(calls) == 20
    assert front.most <= 3
    assert front.sent == [*range(20)]


def test_a_request_that_cannot_be_sent_ends_it():
    class Refusing(Front):
        def send(self, index, done):
            raise RequestError("it fits no profile")

    with pytest.raises(RequestError, match="fits no profile"):
        drive(Refusing(), 2, InFlight(2))


def test_tasks_are_asked_in_turns():
    tasks = [Task("a", "1"), Task("b", "2")]
    asks = asked(tasks, None, 3, seed=7)
    assert [(ask.prompt, ask.answer, ask.seed) for ask in asks] == [
        ("a", "1", 7),
        ("b", "2", 8),
        ("a", "1", 9),
    ]


def test_arbitrary_prompts_are_of_all_lengths_and_of_ids_that_may_be_predicted(manifest):
    tokens = Tokens(**{**manifest.tokens.model_dump(), "suppressed": (1, 3, 5)})
    asks = arbitrary(manifest.model_copy(update={"tokens": tokens}), (2, 5), 60, seed=0)
    assert {len(ask.prompt) for ask in asks} == {2, 3, 4, 5}
    used = {token for ask in asks for token in ask.prompt}
    assert not used & {1, 3, 5}
    assert used <= set(range(manifest.model.vocab_size))
    assert all(ask.answer is None for ask in asks)
    again = arbitrary(manifest, (2, 5), 60, seed=1)
    assert [ask.prompt for ask in again] != [ask.prompt for ask in asks]


@pytest.mark.parametrize(
    ("cache", "answer", "lengths"), [(1024, 64, (16, 128)), (96, 64, (3, 28)), (64, 64, (1, 1))]
)
def test_prompts_are_as_long_as_fits(cache, answer, lengths):
    profiles = [Profile(batch=1, block=4, cache=c, rows=4) for c in (8, cache)]
    assert fitting(profiles, 4, answer) == lengths
