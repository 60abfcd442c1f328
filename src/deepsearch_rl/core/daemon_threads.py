"""Calls in threads that do not keep a program alive.

Python waits at exit for the threads of a ThreadPoolExecutor, so a thread that retries a request for
minutes would hold up a program that was told to stop, and keep spending money.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_daemons(
    function: Callable[[ItemT], ResultT], items: Sequence[ItemT], threads: int
) -> list[ResultT]:
    """Return the function's results in the order of the items, computed in up to ``threads`` threads.

    After an error no further item starts; when the running ones have ended, the first item's error is
    raised. Ctrl-C waits for nothing.
    """
    futures: list[Future[ResultT]] = [Future() for _ in items]
    waiting = deque(zip(futures, items, strict=True))
    workers: list[threading.Thread] = []
    for _ in range(min(threads, len(items))):
        worker = threading.Thread(target=_work, args=(function, waiting), daemon=True)
        worker.start()
        workers.append(worker)

    try:
        return [future.result() for future in futures]
    except BaseException as error:
        waiting.clear()
        if isinstance(error, Exception):
            for worker in workers:
                worker.join()
        raise


def _work(
    function: Callable[[ItemT], ResultT], waiting: deque[tuple[Future[ResultT], ItemT]]
) -> None:
    while True:
        try:
            future, item = waiting.popleft()
        except IndexError:
            return

        try:
            future.set_result(function(item))
        # The caller would wait for ever
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
            waiting.clear()
