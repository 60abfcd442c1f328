"""The environment for trainers without an event loop.

A thread of its own has the loop, and the episodes of a batch take their turns at once.
"""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self, TypeVar

from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.episode import Episode, Step
from deepsearch_rl.environment.search_environment import SearchEnvironment, open_environment

ResultT = TypeVar("ResultT")


class BlockingEnvironment:
    """Runs an environment in a thread of its own; use as a context manager.

    ``connect`` opens the environment inside that thread, e.g. ``partial(open_environment, params,
    ...)``.
    """

    def __init__(
        self, connect: Callable[[], AbstractAsyncContextManager[SearchEnvironment]]
    ) -> None:
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="search-environment", daemon=True
        )
        self._closing = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        opened = self._loop.create_future()
        self._session = asyncio.run_coroutine_threadsafe(self._hold(opened), self._loop)

        # Whatever ends the opening, Ctrl-C included, the thread must not outlive it
        try:
            self.environment = self._run(_result(opened))
        except BaseException:
            self._stop()
            raise

        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        try:
            self._session.result()
        finally:
            self._stop()

    def open(self, question: Question, sample: int = 0) -> Episode:
        """Begin an episode."""
        return self.environment.open(question, sample)

    def step(
        self,
        episodes: Sequence[Episode],
        turns: Sequence[str | Sequence[int]],
        logprobs: Sequence[Sequence[float]] | None = None,
    ) -> list[Step]:
        """Take one turn of every episode, with its log-probabilities; their searches run side by side."""
        logprobs_of_turns = [None] * len(turns) if logprobs is None else logprobs

        async def step_all() -> list[Step]:
            steps: list[Coroutine[Any, Any, Step]] = []
            for episode, turn, values in zip(episodes, turns, logprobs_of_turns, strict=True):
                steps.append(episode.step(turn, logprobs=values))
            return await asyncio.gather(*steps)

        return self._run(step_all())

    def begin(self, work: Coroutine[Any, Any, ResultT]) -> Awaitable[ResultT]:
        """Start work in the environment's thread, for a trainer that has an event loop of its own to await it in."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _hold(self, opened: "asyncio.Future[SearchEnvironment]") -> None:
        """Keep the environment open until it is closed; what goes wrong before is the caller's error."""
        try:
            async with self._connect() as environment:
                opened.set_result(environment)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)


@functools.cache
def shared_environment(params: str, model: str, retrieval_url: str) -> BlockingEnvironment:
    """Return the environment of this process for a params file, which is open until the process ends."""
    connect = functools.partial(
        open_environment, Path(params), model=Path(model), retrieval_url=retrieval_url
    )
    return BlockingEnvironment(connect).__enter__()


async def _result(future: "asyncio.Future[ResultT]") -> ResultT:
    return await future
