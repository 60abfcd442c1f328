"""An engine of a few lines: its policy is one number, and it knows no model, no server and no other package."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.core.records import Message, Question, StopReason, Trajectory
from deepsearch_rl.train.rl.rl_trainer import Rollout, RolloutSampling


class TinyTrainer:
    """Answers a question with its golden answer where the random number of the rollout is below ``skill``.

    ``calls`` records what the loop asked for, ``rewards`` those of every update. ``ends`` says how the rollouts of a
    sample number end that do not answer; a negative number is that of a dev rollout, from -1 on.
    Every rollout of a question whose id is in ``easy`` is right.
    """

    hardware: Mapping[str, str] = {"device": "none", "dtype": "int"}

    def __init__(
        self, folder: Path, ends: Mapping[int, StopReason] | None = None, easy: Collection[str] = ()
    ) -> None:
        self.folder, self.ends, self.easy = folder, ends or {}, easy
        self.step = 0
        self.calls: list[str] = []
        self.rewards: list[Sequence[Sequence[float]]] = []

    @property
    def skill(self) -> float:
        return json.loads((self.folder / str(self.step)).read_text())

    async def start(self, step: int) -> int:
        self.calls.append(f"start {step}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.keep_only({number for number in self._saved() if number <= step})
        if not self._saved():
            (self.folder / "0").write_text("0.25")
        self.step = max(self._saved())
        return self.step

    async def roll_out(
        self, questions: Sequence[Question], sampling: RolloutSampling
    ) -> list[list[Rollout]]:
        self.calls.append(f"roll out {len(questions)} x {sampling.samples}")
        return [
            [self._answer(question, sample, sampling) for sample in range(sampling.samples)]
            for question in questions
        ]

    def _answer(self, question: Question, sample: int, sampling: RolloutSampling) -> Rollout:
        share = (sample + 0.5) / sampling.samples
        end = self.ends.get(sample if sampling.trained else -1 - sample)
        is_right = share < self.skill or question.id in self.easy
        answer = question.golden_answers[0] if is_right else "something else"
        trajectory = Trajectory(
            id=f"{question.id}#{sample}",
            question_id=question.id,
            sample=sample,
            question=question.question,
            golden_answers=question.golden_answers,
            model=f"tiny@{self.step}",
            prompt="tiny",
            temperature=sampling.temperature,
            messages=(Message(role="assistant", content=f"<answer>{answer}</answer>"),),
            answer=answer,
            stop_reason=end or StopReason.ANSWERED,
            error="401 Unauthorized" if end else None,
        )
        return Rollout(trajectory, capture=share)

    async def update(
        self, rollouts_QG: Sequence[Sequence[Rollout]], rewards_QG: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        self.calls.append(f"update from {sum(map(len, rollouts_QG))}")
        self.rewards.append(rewards_QG)
        skill = self.skill + 0.25 * bool(sum(map(sum, rewards_QG)))
        (self.folder / str(self.step + 1)).write_text(json.dumps(skill))
        return {"loss": -skill}

    def require_whole(self, step: int) -> None:
        if step not in self._saved():
            raise ArtifactError(f"{self.folder / str(step)} is missing.")

    async def serve(self) -> None:
        self.step += 1

    def save(self, step: int, folder: Path) -> None:
        (folder / "adapter").write_text((self.folder / str(step)).read_text())

    def keep_only(self, steps: set[int]) -> None:
        for number in self._saved() - steps:
            (self.folder / str(number)).unlink()

    def _saved(self) -> set[int]:
        return {int(path.name) for path in self.folder.iterdir()}

    async def close(self) -> None:
        self.calls.append("close")
