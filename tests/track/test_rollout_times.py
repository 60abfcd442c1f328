"""The times of rollouts, from a real agent with a real endpoint to the spans in a real MLflow store."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
from mlflow.entities import Trace
from mlflow.tracking import MlflowClient

from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.agent.timing import (
    RolloutTimes,
    kept_times,
    read_times,
    times_path,
    trajectory_digest,
)
from deepsearch_rl.core.files import read_jsonl, read_record, sha256_file
from deepsearch_rl.core.records import Question, Trajectory
from deepsearch_rl.evaluate.tables import F1Table
from deepsearch_rl.track.report import log_report
from deepsearch_rl.track.traces import NO_TIMES
from tests.agent.conftest import ChatServer, agent_config, chat_server, completion
from tests.agent.search_server import serve_search
from tests.track.conftest import (
    CONFIG,
    SEED,
    make_results,
    new_store,
    traces_experiment,
)

__all__ = ["agent_config", "chat_server"]
SEARCH_S = 0.05
QUESTIONS = [
    Question(id=f"q{number}", question="Which port?", golden_answers=("Port Vale",))
    for number in range(3)
]
Answer = Callable[[list[Question], Path, Path], None]


@pytest.fixture
def answer(
    chat_server: ChatServer,
    agent_config: Callable[..., AgentConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Answer:
    """Collects rollouts of two parallel searches, which take their time, and an answer; in an empty project."""
    monkeypatch.chdir(tmp_path)
    chat_server.reply = lambda body: (
        completion("<answer>Port Vale</answer>")
        if body["messages"][-1]["role"] == "tool"
        else completion("", "port", "harbour")
    )

    def run(questions: list[Question], log: Path, out: Path) -> None:
        with serve_search(lambda _: time.sleep(SEARCH_S)) as port:
            url = f"http://127.0.0.1:{port}"
            agents: Callable[[], AbstractAsyncContextManager[SearchAgent]] = partial(
                SearchAgent, agent_config(), chat_server.endpoint, url, 0.7
            )
            collect(BulkRun(questions, 1, [agents], log, "test", out), concurrency=2)

    return run


def times_of(log: Path) -> dict[str, RolloutTimes]:
    return {times.question_id: times for times in read_jsonl(times_path(log), RolloutTimes)}


@pytest.mark.slow
def test_model_calls_and_searches_are_timed_beside_the_log_and_the_artifact_has_no_clock(
    answer: Answer, tmp_path: Path
) -> None:
    log, began_ns = tmp_path / "work" / "log.jsonl", time.time_ns()
    answer(QUESTIONS[:2], log, tmp_path / "first.jsonl")
    for trajectory in read_jsonl(tmp_path / "first.jsonl", Trajectory):
        times = times_of(log)[trajectory.question_id]
        assert times.trajectory == trajectory_digest(trajectory)
        steps = {step.message: step for step in times.steps}
        assert {message: steps[message].kind for message in sorted(steps)} == {
            2: "model_call",
            3: "search",
            4: "search",
            5: "model_call",
        }
        assert all(
            step.duration_ns >= SEARCH_S * 1e9 for step in times.steps if step.kind == "search"
        )
        assert steps[3].start_ns < steps[4].start_ns < steps[3].start_ns + steps[3].duration_ns, (
            "at the same time"
        )
        assert all(step.start_ns + step.duration_ns <= times.duration_ns for step in times.steps)
        assert steps[2].start_ns + steps[2].duration_ns <= steps[3].start_ns
        assert began_ns <= times.start_ns <= times.start_ns + times.duration_ns <= time.time_ns()
    answer(QUESTIONS[:2], tmp_path / "work" / "again.jsonl", tmp_path / "second.jsonl")
    assert sha256_file(tmp_path / "first.jsonl") == sha256_file(tmp_path / "second.jsonl")


@pytest.mark.slow
def test_a_resumed_run_keeps_the_times_of_the_rollouts_in_the_log(
    answer: Answer, tmp_path: Path
) -> None:
    log = kept_times("tiny", "sft") / "digest" / "run.jsonl"
    answer(QUESTIONS, log, tmp_path / "out.jsonl")
    earlier = times_of(log)
    kept, *_ = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(kept + b'{"id": "q')  # as a kill leaves it
    times_path(log).write_bytes(times_path(log).read_bytes()[:-9])
    answer(QUESTIONS, log, tmp_path / "out.jsonl")
    first = Trajectory.model_validate_json(kept)
    trajectories = list(read_jsonl(tmp_path / "out.jsonl", Trajectory))
    times = read_times(
        kept_times("tiny", "sft"), {trajectory_digest(rollout) for rollout in trajectories}
    )
    assert len(times) == len(QUESTIONS)
    assert times[trajectory_digest(first)] == earlier[first.question_id]
    for trajectory in trajectories:
        if trajectory.id != first.id:
            assert times[trajectory_digest(trajectory)].start_ns > max(
                one.start_ns for one in earlier.values()
            )


@pytest.mark.slow
def test_a_line_of_times_that_a_kill_cut_off_is_left_out(answer: Answer, tmp_path: Path) -> None:
    log = kept_times("tiny", "sft") / "digest" / "run.jsonl"
    answer(QUESTIONS[:1], log, tmp_path / "out.jsonl")
    with times_path(log).open("ab") as file:
        file.write(b'{"question_id": ')
    [trajectory] = read_jsonl(tmp_path / "out.jsonl", Trajectory)
    assert (
        len(read_times(kept_times("tiny", "sft"), {trajectory_digest(trajectory), "another"})) == 1
    )
    assert read_times(kept_times("tiny", "sft"), {"another"}) == {}


@pytest.mark.slow
def test_the_spans_in_mlflow_have_the_real_times_and_other_machines_rollouts_have_none(
    answer: Answer, tmp_path: Path
) -> None:
    results = make_results(tmp_path / "results")
    table = read_record(results.reports / "f1_table.json", F1Table)
    main, *_ = (row for row in table.rows if row.model == "sft")
    answer(
        QUESTIONS, kept_times("tiny", "sft") / "digest" / main.rollouts_file, tmp_path / "out.jsonl"
    )
    (tmp_path / "out.jsonl").replace(results.evaluations["sft"] / main.rollouts_file)
    config = CONFIG.model_copy(update={"traces": 1.0})
    store = new_store(tmp_path)
    report = log_report(results, config, SEED)
    timed, untimed = _traces(store, "recorded"), _traces(store, NO_TIMES)
    assert len(timed) == len(QUESTIONS)
    assert len(timed) + len(untimed) == report.traces
    for trace in timed:
        root, first, port, harbour, last = sorted(trace.data.spans, key=lambda span: span.span_id)
        for search in (port, harbour):
            assert search.span_type == "RETRIEVER"
            assert (search.end_time_ns or 0) - search.start_time_ns >= SEARCH_S * 1e9
        assert (
            root.start_time_ns
            <= first.start_time_ns
            < (first.end_time_ns or 0)
            <= port.start_time_ns
        )
        assert (
            (harbour.end_time_ns or 0)
            <= last.start_time_ns
            < (last.end_time_ns or 0)
            <= (root.end_time_ns or 0)
        )
        assert (trace.info.execution_duration or 0) >= SEARCH_S * 1000
    assert all(
        span.start_time_ns == span.end_time_ns for trace in untimed for span in trace.data.spans
    )


def _traces(store: str, times: str) -> list[Trace]:
    client = MlflowClient(tracking_uri=store)
    found = client.search_traces(locations=[traces_experiment(client)], max_results=500)
    return [trace for trace in found if trace.info.tags["times"] == times]
