"""An application on an event loop of its own, for programs that have none."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from fastapi import FastAPI


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
        self._thread = threading.Thread(target=self._loop.run_forever, name="dlmc-app")
        self._thread.start()
        try:
            self.run(self._start()).result()
        except BaseException:
            self._stop()
            raise

    def run(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Let what runs finish, as long as the application allows, and stop the loop."""
        try:
            self.run(self._lifespan.aclose()).result()
        finally:
            self._stop()

    async def _start(self) -> None:
        await self._lifespan.enter_async_context(self.app.router.lifespan_context(self.app))

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
