"""Collecting rollouts: what is resumed, what is not, and what a killed writer leaves."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.records import Question, StopReason, Trajectory
from deepsearch_rl.trajectories.collect import collect, log_path, read_trajectories, write_trajectories

QUESTIONS = [Question(id=f"q{number}", question="Who?", golden_answers=("Mary",)) for number in range(20)]

KILLED_WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_collect import QUESTIONS, ScriptedAgent
from deepsearch_rl.trajectories.collect import collect

async def answer(question, sample):
    if question.id == "q7":
        print("reached", flush=True)
        await asyncio.Event().wait()
    return ScriptedAgent.trajectory(question, sample)

collect(QUESTIONS, 2, lambda: ScriptedAgent(answer), Path(sys.argv[1]), 3, "killed")
"""


class ScriptedAgent:
    """Answers by the given function and counts the questions that it was asked."""

    def __init__(self, answer: Callable | None = None) -> None:
        self._answer, self.asked, self.running, self.most_running = answer, [], 0, 0

    async def __aenter__(self) -> "ScriptedAgent":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def answer(self, question: Question, sample: int) -> Trajectory:
        self.asked.append(f"{question.id}#{sample}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return await self._answer(question, sample) if self._answer else self.trajectory(question, sample)

    @staticmethod
    def trajectory(question: Question, sample: int, reason: StopReason = StopReason.ANSWERED) -> Trajectory:
        return Trajectory(
            id=f"{question.id}#{sample}",
            question_id=question.id,
            sample=sample,
            question=question.question,
            golden_answers=question.golden_answers,
            model="m",
            prompt="tiny",
            temperature=0.7,
            messages=(),
            answer="Mary",
            stop_reason=reason,
            error="connection refused" if reason is StopReason.MODEL_ERROR else None,
        )


def test_every_question_is_answered_as_often_as_asked_with_bounded_concurrency(tmp_path: Path):
    agent = ScriptedAgent()
    trajectories = collect(QUESTIONS, 2, lambda: agent, tmp_path / "log.jsonl", 3, "test")
    assert [trajectory.id for trajectory in trajectories] == sorted(agent.asked, key=lambda id_: id_.split("#"))
    assert len(agent.asked) == 40
    assert agent.most_running == 3


def test_a_writer_killed_in_the_middle_is_continued_where_it_stopped(tmp_path: Path):
    log = tmp_path / "work" / "log.jsonl"
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(log), here], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    assert process.stdout.readline() == b"reached\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    kept = log.read_bytes()
    log.write_bytes(kept + b'{"id": "q19#1", "question_id": "q1')  # and the power failed in the middle of a line

    agent = ScriptedAgent()
    trajectories = collect(QUESTIONS, 2, lambda: agent, log, 3, "test")
    assert len(trajectories) == 40
    assert 0 < kept.count(b"\n") == 40 - len(agent.asked)
    assert "q0#0" not in agent.asked
    assert "q7#0" in agent.asked


def test_a_finished_log_is_read_without_opening_an_agent(tmp_path: Path):
    first = collect(QUESTIONS, 1, ScriptedAgent, tmp_path / "log.jsonl", 3, "test")

    @asynccontextmanager
    async def no_agent():
        pytest.fail("the agent was opened")
        yield

    assert collect(QUESTIONS, 1, no_agent, tmp_path / "log.jsonl", 3, "test") == first


def test_rollouts_that_a_server_ended_are_tried_again_and_those_a_model_ended_are_not(tmp_path: Path):
    reasons = {"q1": StopReason.MODEL_ERROR, "q2": StopReason.TURN_BUDGET}

    async def answer(question: Question, sample: int) -> Trajectory:
        return ScriptedAgent.trajectory(question, sample, reasons.get(question.id, StopReason.ANSWERED))

    log = tmp_path / "log.jsonl"
    first = collect(QUESTIONS, 1, lambda: ScriptedAgent(answer), log, 3, "test")
    assert {trajectory.question_id for trajectory in first if trajectory.failed} == {"q1", "q2"}
    again = ScriptedAgent()
    collect(QUESTIONS, 1, lambda: again, log, 3, "test")
    assert again.asked == ["q1#0"]


def test_a_server_that_is_gone_stops_the_run_with_its_error(tmp_path: Path):
    async def answer(question: Question, sample: int) -> Trajectory:
        return ScriptedAgent.trajectory(question, sample, StopReason.MODEL_ERROR)

    agent = ScriptedAgent(answer)
    with pytest.raises(EndpointError, match="connection refused"):
        collect(QUESTIONS, 2, lambda: agent, tmp_path / "log.jsonl", 3, "test")
    assert len(agent.asked) < 20
    with pytest.raises(EndpointError, match="connection refused"):
        collect(QUESTIONS[:2], 1, lambda: agent, tmp_path / "few.jsonl", 3, "test")


def test_a_full_disk_is_told_as_it_is(tmp_path: Path):
    async def answer(*_: object) -> Trajectory:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "log.jsonl")

    with pytest.raises(OSError, match="No space left"):
        collect(QUESTIONS, 2, lambda: ScriptedAgent(answer), tmp_path / "log.jsonl", 3, "test")


def test_a_changed_parameter_does_not_resume_what_another_made():
    assert log_path("synthesize", {"top_k": 3}) == log_path("synthesize", {"top_k": 3})
    assert log_path("synthesize", {"top_k": 3}) != log_path("synthesize", {"top_k": 4})


def test_an_artifact_is_sorted_whatever_the_order_of_finishing(tmp_path: Path):
    trajectories = collect(QUESTIONS, 2, ScriptedAgent, tmp_path / "log.jsonl", 3, "test")
    write_trajectories(tmp_path / "a.jsonl", reversed(trajectories))
    write_trajectories(tmp_path / "b.jsonl", trajectories)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert read_trajectories(tmp_path / "a.jsonl") == trajectories
