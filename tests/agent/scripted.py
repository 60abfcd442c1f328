"""An agent that answers from a function, and a run of it in a process of its own that a test can kill."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from deepsearch_rl.agent.collect import BulkRun, collect
from deepsearch_rl.core.records import Message, Question, StopReason, TokenUsage, Trajectory

SAMPLES = 2
CONCURRENCY = 5
ANNOUNCEMENT_BYTES = 64


def rollout_id(question_id: str, sample: int) -> str:
    return f"{question_id}#{sample}"


def make_questions(count: int) -> list[Question]:
    return [
        Question(id=f"q{number}", question="Who?", golden_answers=("Mary",))
        for number in range(count)
    ]


def make_trajectory(
    question: Question,
    sample: int,
    reason: StopReason = StopReason.ANSWERED,
    usage: tuple[TokenUsage, ...] = (),
    text: str = "",
) -> Trajectory:
    return Trajectory(
        id=rollout_id(question.id, sample),
        question_id=question.id,
        sample=sample,
        question=question.question,
        golden_answers=question.golden_answers,
        model="m",
        prompt="tiny",
        temperature=0.7,
        messages=(Message(role="tool", content=text, tool_call_id="call_1"),) if text else (),
        answer="Mary" if reason is StopReason.ANSWERED else "",
        stop_reason=reason,
        error="connection refused" if reason is StopReason.MODEL_ERROR else None,
        usage=usage,
    )


class ScriptedAgent:
    """Answers by the given function and counts the questions that it was asked."""

    def __init__(
        self, answer: Callable[[Question, int], Awaitable[Trajectory]] | None = None
    ) -> None:
        self._answer, self.asked, self.running, self.most_running = answer, list[str](), 0, 0

    async def __aenter__(self) -> "ScriptedAgent":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def answer(self, question: Question, sample: int) -> Trajectory:
        self.asked.append(rollout_id(question.id, sample))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        return (
            await self._answer(question, sample)
            if self._answer
            else make_trajectory(question, sample)
        )


async def announced_answer(question: Question, sample: int) -> Trajectory:
    """Say on stdout which rollout begins, and finish it after others that began later."""
    os.write(
        sys.stdout.fileno(),
        rollout_id(question.id, sample).encode().ljust(ANNOUNCEMENT_BYTES - 1) + b"\n",
    )
    number = int(question.id.removeprefix("q"))
    for _ in range(1 + (number * 7 + sample * 3) % 11):
        await asyncio.sleep(0)
    return make_trajectory(
        question, sample, text=f"[1] Maß {number}\n" + "ünïcode 🐟 " * (number % 50)
    )


if __name__ == "__main__":
    log, out, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    killed = BulkRun(
        make_questions(count),
        SAMPLES,
        [lambda: ScriptedAgent(announced_answer)],
        log,
        "killed",
        out,
    )
    collect(killed, CONCURRENCY)
