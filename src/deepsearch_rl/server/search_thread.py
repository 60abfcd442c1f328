"""A thread that runs one search after the other for an event loop, and is left behind where a search hangs.

No thread can be stopped from outside. One whose search is past its deadline keeps its memory and,
if it computes, its core, until the search returns; a new thread takes its place.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


class SearchThread(Generic[JobT, ResultT]):
    """Runs ``function`` on one job after the other."""

    def __init__(
        self, function: Callable[[JobT], ResultT], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._function = function
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[JobT, asyncio.Future[ResultT]] | None] = (
            queue.SimpleQueue()
        )
        # A daemon: a search that hangs must not keep a server alive that was told to stop.
        threading.Thread(target=self._work, name="search", daemon=True).start()

    def run(self, job: JobT) -> asyncio.Future[ResultT]:
        """Return the future result, or error, of a job, which begins after the jobs before it."""
        future: asyncio.Future[ResultT] = self._loop.create_future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> None:
        """End the thread after the jobs that it has."""
        self._jobs.put(None)

    def _work(self) -> None:
        while item := self._jobs.get():
            job, future = item
            try:
                settle = partial(future.set_result, self._function(job))
            # Whatever it is: without this thread, every later job would wait for ever.
            except BaseException as error:  # noqa: BLE001
                settle = partial(
                    future.set_exception, RuntimeError(f"{type(error).__name__}: {error}")
                )

            try:
                self._loop.call_soon_threadsafe(_unless_done, future, settle)
            except RuntimeError:
                # The loop was closed while the job ran, so nobody waits for it
                return


def _unless_done(future: asyncio.Future[ResultT], settle: Callable[[], None]) -> None:
    # It was cancelled if the server has stopped
    if not future.done():
        settle()
