import threading
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI

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
