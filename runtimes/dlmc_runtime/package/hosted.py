"""An application on an event loop of its own, for programs that have none."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from fastapi import FastAPI

from dlmc_runtime.serve import jobs

ANSWER_SECONDS = 10.0
"""How long answers may still take once an application has shut down."""


class Hosted:
    """Runs an application's lifespan, and coroutines beside it, on a thread.

    Args:
        app: started by the constructor and shut down by `close`.

    Raises:
        Exception: whatever the application raises where it cannot start.
    """

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._lifespan = AsyncExitStack()
        self._running: set[Future[None]] = set()  # a loop alone does not keep what waits alive
        self._thread = threading.Thread(target=self._loop.run_forever, name="dlmc-app")
        self._thread.start()
        try:
            self.run(self._start()).result()
        except BaseException:
            self._stop()
            raise

    def run(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        """Start a coroutine on the loop."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    def close(self) -> None:
        """Let what runs finish, as long as the application allows, and stop the loop.

        An application that has shut down has nothing more to do, but what was done may still have
        to be told: coroutines have `ANSWER_SECONDS` for that, and are cancelled then.
        """
        try:
            self.run(self._finish()).result()
        finally:
            self._stop()

    async def _start(self) -> None:
        await self._lifespan.enter_async_context(self.app.router.lifespan_context(self.app))

    async def _finish(self) -> None:
        try:
            await self._lifespan.aclose()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                _, late = await asyncio.wait(others, timeout=ANSWER_SECONDS)
                await jobs.stop(*late)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
