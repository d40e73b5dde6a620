import asyncio
import gc
import threading
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI

from dlmc_runtime.package import hosted as module
from dlmc_runtime.package.hosted import Hosted


@pytest.fixture
def seen():
    return []


@pytest.fixture
def app(seen):
    @asynccontextmanager
    async def lifespan(app):
        seen.append(("start", threading.current_thread().name))
        yield
        seen.append(("stop", threading.current_thread().name))

    return FastAPI(lifespan=lifespan)


def test_an_application_lives_on_a_thread_of_its_own(app, seen):
    async def work():
        seen.append(("work", threading.current_thread().name))

    hosted = Hosted(app)
    hosted.run(work()).result(10)
    hosted.close()
    assert seen == [(what, "dlmc-app") for what in ("start", "work", "stop")]
    assert "dlmc-app" not in [thread.name for thread in threading.enumerate()]


def test_an_application_that_cannot_start_leaves_no_thread():
    async def refuse() -> None:
        raise ValueError("no")

    @asynccontextmanager
    async def lifespan(app):
        await refuse()
        yield

    with pytest.raises(ValueError, match="no"):
        Hosted(FastAPI(lifespan=lifespan))
    assert "dlmc-app" not in [thread.name for thread in threading.enumerate()]


def test_what_was_done_is_told_after_the_application_has_stopped(app, seen):
    async def tell():
        while ("stop", "dlmc-app") not in seen:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        seen.append("told")

    hosted = Hosted(app)
    telling = hosted.run(tell())
    hosted.close()
    assert telling.done()
    assert seen[-1] == "told"


def test_what_never_ends_is_cancelled(app, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)

    async def wait() -> None:
        await asyncio.Event().wait()

    hosted = Hosted(app)
    waiting = hosted.run(wait())
    hosted.close()
    assert waiting.cancelled()


def test_what_nobody_else_holds_is_not_forgotten(app, seen, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.05)

    async def wait() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    async def collect() -> None:
        gc.collect()

    hosted = Hosted(app)
    hosted.run(wait())
    hosted.run(collect()).result()
    hosted.close()
    assert seen.index("begun") < seen.index("cancelled")


def test_an_application_that_fails_to_stop_lets_answers_be_told(seen):
    @asynccontextmanager
    async def lifespan(app):
        yield
        raise ValueError("no")

    async def tell():
        await asyncio.sleep(0.05)
        seen.append("told")

    hosted = Hosted(FastAPI(lifespan=lifespan))
    hosted.run(tell())
    with pytest.raises(ValueError, match="no"):
        hosted.close()
    assert seen == ["told"]
    assert "dlmc-app" not in [thread.name for thread in threading.enumerate()]
