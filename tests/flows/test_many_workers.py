"""Several workers at one server share its runs."""

from itertools import pairwise

import pytest

from tests.flows.many_workers import Outcome, simulate, table

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
WORKERS, RUNS = 2, 6


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return simulate(tmp_path_factory.mktemp("load"), WORKERS, RUNS, idle_s=0)


def test_every_queued_run_completes_and_runs_once(outcome: Outcome) -> None:
    assert len(outcome.runs) == len(outcome.lines) == RUNS
    assert outcome.problems() == []


def test_a_worker_takes_its_next_run_when_the_last_one_has_ended(outcome: Outcome) -> None:
    for runs in outcome.by_clone().values():
        assert [after.taken >= before.ended for before, after in pairwise(runs)] == [True] * (
            len(runs) - 1
        )
    counts = sorted(map(len, outcome.by_clone().values()))
    assert (len(counts), sum(counts)) == (WORKERS, RUNS)
    assert f"runs per worker: {counts}" in table(outcome)
