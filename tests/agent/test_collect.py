"""Collecting rollouts: what is asked, what is resumed, what is not, and what every line of a log means."""

import asyncio
import errno
import json
import os
import weakref
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deepsearch_rl.agent.collect import (
    BulkRun,
    TrajectoryFile,
    collect,
    collect_in_turn,
)
from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.rollout import SearchAgent
from deepsearch_rl.chat.endpoint import Endpoint
from deepsearch_rl.core.errors import ConfigError, EndpointError, RecordError
from deepsearch_rl.core.files import only_writer, read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.progress import ProgressBar
from deepsearch_rl.core.records import Question, StopReason, Trajectory
from tests.agent.scripted import ScriptedAgent, make_questions, make_trajectory

QUESTIONS = make_questions(20)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "work" / "log.jsonl"


def run(
    agent: ScriptedAgent, log: Path, questions: list[Question] = QUESTIONS, samples: int = 1
) -> TrajectoryFile:
    out = log.parent.parent / "out.jsonl"
    return collect(BulkRun(questions, samples, [lambda: agent], log, "test", out), concurrency=3)


def ends(reasons: dict[str, StopReason]) -> ScriptedAgent:
    """An agent whose rollouts end as said by question id, in an answer where nothing is said."""

    async def answer(question: Question, sample: int) -> Trajectory:
        return make_trajectory(question, sample, reasons.get(question.id, StopReason.ANSWERED))

    return ScriptedAgent(answer)


def write_log(log: Path, *trajectories: Trajectory) -> None:
    log.parent.mkdir(parents=True)
    log.write_text(
        "".join(one.model_dump_json(exclude_none=True) + "\n" for one in trajectories),
        encoding="utf-8",
    )


def test_every_question_is_answered_as_often_as_asked_with_bounded_concurrency(log: Path):
    agent = ScriptedAgent()
    found = run(agent, log, samples=2)
    assert [trajectory.id for trajectory in found] == sorted(
        agent.asked, key=lambda id_: id_.split("#")
    )
    assert len(agent.asked) == found.count == 40
    assert agent.most_running == 3


def test_the_artifact_is_sorted_whatever_the_order_of_finishing_and_can_be_read_again_and_again(
    log: Path,
):
    finished: list[str] = []

    async def answer(question: Question, sample: int) -> Trajectory:
        for _ in range(int(question.id.removeprefix("q")) * 7 % 5):
            await asyncio.sleep(0)
        finished.append(f"{question.id}#{sample}")
        return make_trajectory(question, sample)

    found = run(ScriptedAgent(answer), log, samples=2)
    ids = [trajectory.id for trajectory in found]
    assert ids == sorted(finished, key=lambda id_: id_.split("#")) != finished
    assert [trajectory.id for trajectory in found] == ids
    assert list(read_jsonl(found.path, Trajectory)) == list(found)


def test_no_more_trajectories_are_held_than_are_being_made(log: Path):
    made: list[weakref.ref[Trajectory]] = []
    most_alive = 0

    async def answer(question: Question, sample: int) -> Trajectory:
        nonlocal most_alive
        most_alive = max(most_alive, sum(one() is not None for one in made))
        trajectory = make_trajectory(question, sample)
        made.append(weakref.ref(trajectory))
        return trajectory

    found = run(ScriptedAgent(answer), log, samples=5)
    assert len(made) == found.count == 100
    assert most_alive <= 3


def test_a_finished_log_is_read_without_opening_an_agent(log: Path):
    first = list(run(ScriptedAgent(), log))

    @asynccontextmanager
    async def no_agent():
        pytest.fail("the agent was opened")
        yield

    again = collect(BulkRun(QUESTIONS, 1, [no_agent], log, "test", log.with_name("again.jsonl")), 3)
    assert list(again) == first


def test_more_samples_of_the_same_questions_keep_those_there_are(log: Path):
    run(ScriptedAgent(), log, samples=1)
    more = ScriptedAgent()
    assert run(more, log, samples=3).count == 60
    assert {id_.rpartition("#")[2] for id_ in more.asked} == {"1", "2"}
    assert len(more.asked) == 40


def test_rollouts_that_a_server_ended_are_tried_again_and_those_a_model_ended_are_not(log: Path):
    agent = ends(
        {"q1": StopReason.MODEL_ERROR, "q2": StopReason.TURN_BUDGET, "q3": StopReason.TOOL_ERROR}
    )
    assert {trajectory.question_id for trajectory in run(agent, log) if trajectory.failed} == {
        "q1",
        "q2",
        "q3",
    }
    again = ScriptedAgent()
    found = run(again, log)
    assert again.asked == ["q1#0", "q3#0"]
    assert {trajectory.question_id for trajectory in found if trajectory.failed} == {"q2"}
    assert len(log.read_bytes().splitlines()) == 22
    assert found.asked_again == run(ScriptedAgent(), log).asked_again == 2


def test_what_is_asked_for_again_is_named(log: Path, caplog: pytest.LogCaptureFixture):
    assert run(ends({"q1": StopReason.MODEL_ERROR}), log).asked_again == 0
    assert run(ends({"q1": StopReason.TOOL_CALL_UNPARSABLE}), log).asked_again == 1
    assert "a server had failed 1 of these rollouts" in caplog.text
    assert "q1#0" in caplog.text
    last = ScriptedAgent()
    run(last, log)
    assert last.asked == []  # the model's own failure is final


def test_a_server_that_is_gone_stops_the_run_with_its_error(log: Path):
    gone = {question.id: StopReason.MODEL_ERROR for question in QUESTIONS}
    agent = ends(gone)
    with pytest.raises(EndpointError, match="connection refused"):
        run(agent, log, samples=2)
    assert len(agent.asked) < 20
    with pytest.raises(EndpointError, match="connection refused"):
        run(ends(gone), log.with_name("few.jsonl"), QUESTIONS[:2])
    assert not (log.parent.parent / "out.jsonl").exists()


def test_a_model_server_that_refuses_is_told_through_a_real_agent(
    log: Path, smoke: Profile, world_server: str
):
    config = smoke.section("agent", AgentConfig)
    # Refused at once, without the waits of a lost connection
    no_model = Endpoint(f"{world_server}/v1", "none")

    def make_agent() -> SearchAgent:
        return SearchAgent(config, no_model, world_server, 0.7)

    with pytest.raises(EndpointError, match=r"in a row ended in model_error \(NotFoundError"):
        collect(BulkRun(QUESTIONS[:2], 1, [make_agent], log, "test", log.with_name("out.jsonl")), 2)


def in_turn(log: Path, *agents: ScriptedAgent) -> list[BulkRun]:
    """A run of six questions for each agent, with its own log and artifact."""
    return [
        BulkRun(
            QUESTIONS[:6],
            1,
            [lambda agent=agent: agent],
            log.with_name(f"log{number}.jsonl"),
            f"run {number}",
            log.with_name(f"out{number}.jsonl"),
        )
        for number, agent in enumerate(agents)
    ]


def test_a_run_begins_while_the_last_rollouts_of_the_one_before_are_being_made(log: Path):
    order: list[str] = []
    second_has_begun = asyncio.Event()

    async def first(question: Question, sample: int) -> Trajectory:
        order.append(f"1 {question.id}")
        if question.id == "q5":
            await second_has_begun.wait()
        return make_trajectory(question, sample)

    async def second(question: Question, sample: int) -> Trajectory:
        order.append(f"2 {question.id}")
        second_has_begun.set()
        return make_trajectory(question, sample)

    runs = in_turn(log, ScriptedAgent(first), ScriptedAgent(second))
    found = collect_in_turn(runs, concurrency=3)
    assert order == [f"{run} q{number}" for run in (1, 2) for number in range(6)]
    assert [one.path for one in found] == [run.out for run in runs]
    for one in found:
        assert [trajectory.question_id for trajectory in one] == [f"q{n}" for n in range(6)]


def test_runs_share_their_places_and_the_finished_ones_are_left_out(log: Path):
    running, most_running = 0, 0

    async def answer(question: Question, sample: int) -> Trajectory:
        nonlocal running, most_running
        running += 1
        most_running = max(most_running, running)
        for _ in range(int(question.id.removeprefix("q")) * 7 % 5):
            await asyncio.sleep(0)
        running -= 1
        return make_trajectory(question, sample)

    agents = [ScriptedAgent(answer) for _ in range(4)]
    runs = in_turn(log, *agents)
    collect(runs[1], concurrency=3)
    assert len(agents[1].asked) == 6

    found = collect_in_turn(runs, concurrency=3)
    assert [len(agent.asked) for agent in agents] == [6] * 4
    assert [one.count for one in found] == [6] * 4
    assert most_running == 3


def test_a_run_that_fails_stops_the_next_one_and_what_is_finished_stays(log: Path):
    async def hangs(*_: object) -> Trajectory:
        await asyncio.Event().wait()
        pytest.fail("nothing ends this rollout")

    gone = dict.fromkeys((question.id for question in QUESTIONS), StopReason.MODEL_ERROR)
    with pytest.raises(EndpointError, match="connection refused"):
        collect_in_turn(in_turn(log, ends(gone), ScriptedAgent(hangs)), concurrency=8)

    again = ScriptedAgent()
    collect_in_turn(in_turn(log, ScriptedAgent(), again), concurrency=8)
    assert len(again.asked) == 6


def of_two_servers(log: Path, first: ScriptedAgent, second: ScriptedAgent) -> list[BulkRun]:
    """Two runs of six questions, each with an agent at either server."""
    runs: list[BulkRun] = []
    for run in in_turn(log, ScriptedAgent(), ScriptedAgent()):
        runs.append(replace(run, make_agents=[lambda: first, lambda: second]))
    return runs


def test_each_server_has_places_of_its_own(log: Path):
    taken = asyncio.Barrier(6)

    async def answer(question: Question, sample: int) -> Trajectory:
        # Each server has three places, and nothing goes on before all six are taken
        await taken.wait()
        return make_trajectory(question, sample)

    agents = ScriptedAgent(answer), ScriptedAgent(answer)
    found = collect_in_turn(of_two_servers(log, *agents), concurrency=3)
    assert [len(agent.asked) for agent in agents] == [6, 6]
    assert [one.count for one in found] == [6, 6]


def test_a_server_that_is_slow_leaves_the_questions_to_the_other_one(log: Path):
    others_are_done = asyncio.Event()

    async def slow(question: Question, sample: int) -> Trajectory:
        await others_are_done.wait()
        return make_trajectory(question, sample)

    async def count(question: Question, sample: int) -> Trajectory:
        if len(quick.asked) == 10:
            others_are_done.set()
        return make_trajectory(question, sample)

    stuck, quick = ScriptedAgent(slow), ScriptedAgent(count)
    found = collect_in_turn(of_two_servers(log, stuck, quick), concurrency=2)
    assert (len(stuck.asked), len(quick.asked)) == (2, 10)
    for one in found:
        assert [trajectory.question_id for trajectory in one] == [f"q{n}" for n in range(6)]


def test_a_server_that_fails_stops_the_other_one(log: Path):
    async def hangs(*_: object) -> Trajectory:
        await asyncio.Event().wait()
        pytest.fail("nothing ends this rollout")

    gone = dict.fromkeys((question.id for question in QUESTIONS), StopReason.MODEL_ERROR)
    runs = of_two_servers(log, ScriptedAgent(hangs), ends(gone))
    with pytest.raises(EndpointError, match="connection refused"):
        collect_in_turn(runs, concurrency=3)


def test_no_runs_are_no_error() -> None:
    assert collect_in_turn([], concurrency=3) == []


def test_one_bar_is_open_at_a_time(log: Path, monkeypatch: pytest.MonkeyPatch):
    events: list[str] = []

    class RecordedBar(ProgressBar):
        def __enter__(self) -> ProgressBar:
            events.append("opened")
            return super().__enter__()

        def __exit__(self, *exc_info: object) -> None:
            super().__exit__(*exc_info)
            events.append("closed")

    monkeypatch.setattr("deepsearch_rl.agent.collect.ProgressBar", RecordedBar)
    runs = in_turn(log, *(ScriptedAgent() for _ in range(4)))
    collect_in_turn(runs, concurrency=8)
    assert events == ["opened", "closed"] * 4


def test_a_full_disk_is_told_as_it_is(log: Path):
    async def answer(*_: object) -> Trajectory:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "log.jsonl")

    with pytest.raises(OSError, match="No space left"):
        run(ScriptedAgent(answer), log)


def test_a_cut_last_line_is_told_and_only_its_rollout_is_made_again(
    log: Path, caplog: pytest.LogCaptureFixture
):
    whole = list(run(ScriptedAgent(), log))
    written = log.read_bytes()
    last = Trajectory.model_validate_json(written.splitlines()[-1])
    log.write_bytes(written[:-7])
    agent = ScriptedAgent()
    assert list(run(agent, log)) == whole
    assert agent.asked == [last.id]
    assert str(log) in caplog.text


FIRST, SECOND = (make_trajectory(question, 0) for question in QUESTIONS[:2])


@pytest.mark.parametrize(
    ("second", "field"),
    [
        ({}, "id"),  # the first rollout again
        ({"id": "q7#0"}, "id"),  # not its question and sample
        ({**SECOND.model_dump(mode="json"), "schema_version": 99}, "schema_version"),
    ],
)
def test_a_log_line_that_cannot_be_is_refused_by_its_place(
    log: Path, second: dict[str, object], field: str
) -> None:
    line = {**FIRST.model_dump(mode="json", exclude_none=True), **second}
    log.parent.mkdir(parents=True)
    log.write_text(f"{FIRST.model_dump_json(exclude_none=True)}\n{json.dumps(line)}\n")
    with pytest.raises(RecordError) as refused:
        run(ScriptedAgent(), log)
    assert (refused.value.path, refused.value.line, refused.value.field) == (str(log), 2, field)


def test_rollouts_that_are_not_wanted_stay_out_of_the_artifact(log: Path):
    stranger = Question(id="other", question="Who?", golden_answers=("Mary",))
    write_log(
        log,
        make_trajectory(stranger, 0),
        make_trajectory(QUESTIONS[0], 4),
        make_trajectory(QUESTIONS[0], 0),
    )
    agent = ScriptedAgent()
    assert [trajectory.id for trajectory in run(agent, log, QUESTIONS[:2])] == ["q0#0", "q1#0"]
    assert agent.asked == ["q1#0"]


def test_a_second_run_on_the_same_log_is_refused_while_the_first_goes_on(log: Path):
    with only_writer(log), pytest.raises(ConfigError, match=str(os.getpid())):
        run(ScriptedAgent(), log)
