"""What the reflection model reads of a rollout: the conversation, and what was wrong with it."""

from deepsearch_rl.core.records import Trajectory

# Of a message: a search returns thousands
SHOWN_CHARACTERS = 1500


def conversation_text(trajectory: Trajectory) -> str:
    """Return what the model wrote and was shown after the question, long messages cut."""
    lines: list[str] = []
    for message in trajectory.messages:
        if message.role in ("assistant", "tool"):
            parts = list(filter(None, (message.reasoning, message.content)))
            parts += [f"{call.name}({call.arguments})" for call in message.tool_calls]
            text = "\n".join(parts)
            if len(text) > SHOWN_CHARACTERS:
                text = f"{text[:SHOWN_CHARACTERS]} ..."
            lines.append(f"{message.role}: {text}")

    return "\n".join(lines)


def feedback(trajectory: Trajectory, reward: float, full_reward: float) -> str:
    """Return how a rollout ended, in words: reward, correct answers, and the limit or error that stopped it.

    ``full_reward`` is the most that a rollout can earn.
    """
    correct = " or ".join(map(repr, trajectory.golden_answers))
    ending = ""
    if trajectory.failed:
        ending = f"It ended without an answer: {trajectory.error or trajectory.stop_reason}. "
    searches = f"The assistant searched {len(trajectory.retrievals)} times."
    earned = f"The answer {trajectory.answer!r} earns {reward:.2f} of {full_reward:.2f}; correct is {correct}."
    return f"{ending}{earned} {searches}"
