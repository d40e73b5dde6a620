import asyncio
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from starlette.requests import ClientDisconnect, Request

from dlmc_runtime.errors import DeadlineError, EngineError, OverloadError
from dlmc_runtime.events import Committed, Denoised, Failed
from dlmc_runtime.scheduler import Limits, Scheduler
from dlmc_runtime.serve.errors import FieldError
from dlmc_runtime.serve.jobs import Job, Mailbox, Run, planned
from dlmc_runtime.serve.models import Catalog, Served, Site
from dlmc_runtime.serve.settings import Settings
from dlmc_runtime.ticket import Ticket

WAIT = 60.0


def denoised(forward):
    nothing = np.zeros(4, np.int64)
    return Denoised(0, forward, 0, 4, nothing, nothing.astype(bool), nothing.astype(float))


def http(*messages, site=None):
    """A request whose client sends these messages and then nothing."""
    left = [*messages]

    async def receive():
        if left:
            return left.pop(0)
        return await asyncio.Event().wait()

    app = SimpleNamespace(state=SimpleNamespace(site=site))
    return Request({"type": "http", "headers": [], "app": app}, receive)


@pytest.fixture
def served(letters):
    """Make a model whose scheduler runs until the test ends."""
    schedulers = []

    def make(limits=None):
        generator = letters()
        scheduler = Scheduler(generator, limits)
        scheduler.start()
        schedulers.append((scheduler, generator.engine))
        return Served("test", generator, scheduler)

    yield make
    for scheduler, engine in schedulers:
        engine.open_gate()
        scheduler.close()


def requests(served, count=1, length=6):
    return [served.generator.request("abc", max_new_tokens=length) for _ in range(count)]


async def everything(run):
    return [update async for update in run.updates()]


def test_updates_add_up_to_the_result(served):
    async def main():
        model = served()
        return await everything(Run(Job(model, requests(model))))

    updates = asyncio.run(main())
    assert "".join(update.text for update in updates) == "defghi"
    assert [token for update in updates for token in update.tokens] == list(
        updates[-1].result.tokens
    )
    assert [update.result is None for update in updates[:-1]] == [True] * (len(updates) - 1)
    assert updates[-1].count == 6


def test_results_come_in_the_order_of_requests(served):
    async def main():
        model = served()
        both = [*requests(model, length=12), *requests(model, length=2)]
        return await Run(Job(model, both)).results(http())

    assert [result.text for result in asyncio.run(main())] == ["defghijklmno", "de"]


def test_what_nobody_takes_does_not_pile_up():
    async def main():
        box = Mailbox(1, canvases=True)
        put = box.listener(0)
        for forward in range(1000):
            put(denoised(forward))
            put(Committed(0, (1, 2), "ab"))
        (update,) = await box.take()
        put(Committed(0, (3,), "c"))
        (later,) = await box.take()
        return update, later

    update, later = asyncio.run(main())
    assert update.canvas.forward == 999
    assert update.text == "ab" * 1000
    assert update.count == 2000
    assert (later.text, later.tokens, later.count) == ("c", (3,), 2001)
    assert later.canvas is None


def test_canvases_are_dropped_unless_they_are_wanted():
    async def main():
        box = Mailbox(1, canvases=False)
        put = box.listener(0)
        put(denoised(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.take(), 0.01)
        put(Committed(0, (1,), "a"))
        return await box.take()

    (update,) = asyncio.run(main())
    assert update.canvas is None


def test_events_may_come_from_any_thread_and_after_the_loop():
    boxes = []

    async def main():
        box = Mailbox(2, canvases=False)
        boxes.append(box)
        threads = [
            threading.Thread(target=box.listener(index), args=(Committed(0, (1,), "a"),))
            for index in (0, 1)
        ]
        for thread in threads:
            thread.start()
        seen: set[int] = set()
        while len(seen) < 2:
            seen |= {update.index for update in await box.take()}
        for thread in threads:
            thread.join()

    asyncio.run(main())
    boxes[0].listener(0)(Committed(0, (1,), "late"))


def test_a_failed_row_fails_the_job():
    async def main():
        box = Mailbox(2, canvases=False)
        box.listener(0)(Committed(0, (1,), "a"))
        box.listener(1)(Failed(0, EngineError("broken")))
        await box.take()

    with pytest.raises(EngineError, match="broken"):
        asyncio.run(main())


def test_where_one_row_finds_no_room_none_stays(served):
    async def main():
        model = served(Limits(queue=2))
        model.generator.engine.close_gate()
        first = Run(Job(model, requests(model)))
        await asyncio.to_thread(model.generator.engine.waiting.wait, WAIT)
        with pytest.raises(OverloadError):
            Run(Job(model, requests(model, count=3)))
        model.generator.engine.open_gate()
        result = (await first.results(http()))[0]
        assert await asyncio.to_thread(model.scheduler.wait, WAIT)
        return result, model.scheduler.statistics()

    result, statistics = asyncio.run(main())
    assert result.text == "defghi"
    assert statistics.cancelled == 2


def test_what_fits_no_profile_is_blamed_on_its_length(served):
    async def main():
        model = served()
        request = model.generator.request("abc", max_new_tokens=60)
        with pytest.raises(FieldError) as caught:
            Run(Job(model, [request]))
        return caught.value.param

    assert asyncio.run(main()) == "max_tokens"


def test_a_client_that_leaves_frees_its_rows(served):
    async def main():
        model = served()
        engine = model.generator.engine
        engine.close_gate()
        run = Run(Job(model, requests(model, count=2)))
        await asyncio.to_thread(engine.waiting.wait, WAIT)
        with pytest.raises(ClientDisconnect):
            await run.results(http({"type": "http.disconnect"}))
        before = engine.forwards
        engine.open_gate()
        assert await asyncio.to_thread(model.scheduler.wait, WAIT)
        return engine.forwards - before, model.scheduler.statistics()

    forwards, statistics = asyncio.run(main())
    assert forwards == 1
    assert statistics.cancelled == 2
    assert statistics.active == 0


def test_an_update_tells_the_models_observer(served):
    seen: list[Ticket] = []

    async def main():
        model = served()
        model.observe = seen.append
        await Run(Job(model, requests(model, count=2))).results(http())

    asyncio.run(main())
    assert len({*seen}) == len(seen) == 2
    assert all(ticket.first_block is not None for ticket in seen)


def test_a_run_may_be_cancelled_twice_and_after_its_end(served):
    async def main():
        model = served()
        run = Run(Job(model, requests(model)))
        found = await run.results(http())
        run.cancel()
        run.cancel()
        assert await asyncio.to_thread(model.scheduler.wait, WAIT)
        return found[0].text, [ticket.cancelled for ticket in run.tickets]

    assert asyncio.run(main()) == ("defghi", [False])


def test_what_takes_long_to_compile_holds_up_only_its_like(shared):
    opened, begun = threading.Event(), []
    asked, other = SimpleNamespace(response_format="a format"), SimpleNamespace()

    def plan(served, body, site):
        begun.append(body)
        assert opened.wait(WAIT)
        return body

    async def main():
        site = Site(Catalog([shared.served]))
        held = [
            asyncio.ensure_future(planned(plan, shared.served, asked, http(site=site)))
            for _ in range(60)
        ]
        try:
            plain = planned(lambda *_: "done", shared.served, other, http(site=site))
            assert await asyncio.wait_for(plain, WAIT) == "done"
            assert len(begun) < 60
        finally:
            opened.set()
        assert await asyncio.gather(*held) == [asked] * 60

    asyncio.run(main())


@pytest.mark.parametrize(
    ("messages", "seconds", "error"),
    [([{"type": "http.disconnect"}], 600.0, ClientDisconnect), ([], 0.05, DeadlineError)],
)
def test_who_leaves_or_runs_out_of_time_gives_up_the_turn_to_be_compiled(
    shared, messages, seconds, error
):
    asked, begun = SimpleNamespace(response_format="a format"), []

    async def main():
        site = Site(Catalog([shared.served]), Settings(request_seconds=seconds))
        for holder in range(int(site.compiling.total_tokens)):
            site.compiling.acquire_on_behalf_of_nowait(holder)
        with pytest.raises(error):
            await planned(
                lambda *given: begun.append(given),
                shared.served,
                asked,
                http(*messages, site=site),
            )
        return site.compiling.statistics().tasks_waiting

    assert asyncio.run(main()) == 0
    assert begun == []


def test_time_is_up_also_where_a_forward_hangs(served, monkeypatch):
    monkeypatch.setattr("dlmc_runtime.serve.jobs._GRACE_SECONDS", 0.01)
    model = served()
    engine, scheduler = model.generator.engine, model.scheduler
    engine.close_gate()

    async def main():
        Run(Job(model, requests(model)))
        assert engine.waiting.wait(WAIT)
        run = Run(Job(model, requests(model, 2), seconds=0.01))
        with pytest.raises(DeadlineError, match="not done within its time"):
            [update async for update in run.updates()]
        return run

    run = asyncio.run(main())
    assert engine.forwards == 0
    assert all(ticket.cancelled and not ticket.done for ticket in run.tickets)
    engine.open_gate()
    assert scheduler.wait(WAIT)
    statistics = scheduler.statistics()
    assert (statistics.finished["length"], statistics.failed["DeadlineError"]) == (1, 2)
    assert statistics.cancelled == 0
    assert all(ticket.done for ticket in run.tickets)


def test_time_counts_from_the_arrival_of_a_request(shared):
    async def main():
        request = http(site=Site(Catalog([shared.served]), Settings(request_seconds=5.0)))
        request.state.arrived = time.monotonic() - 10
        with pytest.raises(DeadlineError, match="not done within its time"):
            await planned(lambda *_: "done", shared.served, SimpleNamespace(), request)

    asyncio.run(main())
