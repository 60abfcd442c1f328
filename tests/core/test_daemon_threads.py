"""Calls in threads that do not keep a program alive."""

import subprocess
import sys
import threading
import time

import pytest

from deepsearch_rl.core.daemon_threads import map_in_daemons

HANGING = """
import threading, time
from deepsearch_rl.core.daemon_threads import map_in_daemons

begun = threading.Semaphore(0)

def hang(number):
    begun.release()
    time.sleep(60)

threading.Thread(target=map_in_daemons, args=(hang, [1, 2, 3], 2), daemon=True).start()
begun.acquire()
begun.acquire()
"""
# A signal, as Ctrl-C sends it: `interrupt_main` does not wake a thread that waits
INTERRUPTED = """
import signal, threading, time
from deepsearch_rl.core.daemon_threads import map_in_daemons

signal.signal(signal.SIGINT, signal.default_int_handler)

def hang(number):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    time.sleep(60)

map_in_daemons(hang, [1], 1)
"""


def test_results_are_in_the_order_of_the_items_and_no_more_run_at_once_than_may() -> None:
    running = 0
    most_running = 0
    lock = threading.Lock()

    def square(number: int) -> int:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        # The first ones take longest
        time.sleep((20 - number) / 2000)
        with lock:
            running -= 1
        return number**2

    assert map_in_daemons(square, range(20), 3) == [number**2 for number in range(20)]
    assert most_running == 3
    assert map_in_daemons(square, [], 3) == []


def test_after_an_error_nothing_begins_and_what_runs_is_waited_for() -> None:
    failed = threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def fail_at_one(number: int) -> None:
        begun.append(number)
        if number == 1:
            failed.set()
            raise ValueError("one")
        assert failed.wait(10)
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match="one"):
        map_in_daemons(fail_at_one, range(50), 2)
    assert 1 in begun
    assert len(begun) <= 3
    assert sorted(ended) == sorted(set(begun) - {1})


@pytest.mark.parametrize(("program", "status"), [(HANGING, 0), (INTERRUPTED, -2)])
def test_a_program_ends_though_a_call_hangs(program: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=20, check=False, capture_output=True
    )
    assert ended.returncode == status, ended.stderr
