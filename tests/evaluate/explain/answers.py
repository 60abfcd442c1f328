"""Rollouts for tests of explain, written as they should be judged."""

from collections.abc import Sequence

from deepsearch_rl.core.records import (
    Message,
    Question,
    QuestionMetadata,
    Retrieval,
    StopReason,
    ToolCall,
    Trajectory,
)


def make_question(
    name: str = "q1",
    text: str = "Who founded Acme?",
    golds: Sequence[str] = ("Ada Stone",),
    **metadata: object,
) -> Question:
    """A question with whatever its metadata says of its evidence."""
    return Question(
        id=name,
        question=text,
        golden_answers=tuple(golds),
        metadata=QuestionMetadata.model_validate(metadata),
    )


def make_rollout(
    question: Question,
    answer: str,
    searches: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (),
    stop: StopReason = StopReason.ANSWERED,
    last_text: str | None = None,
    sample: int = 0,
    model: str = "model",
) -> Trajectory:
    """A rollout whose searches are pairs of a query and passages, each an id and its contents."""
    messages = [Message(role="user", content=question.question)]
    retrievals: list[Retrieval] = []

    for number, (query, passages) in enumerate(searches, 1):
        call = ToolCall(id=f"call_{number}", name="retrieve", arguments=f'{{"query": "{query}"}}')
        messages.append(Message(role="assistant", tool_calls=(call,)))
        shown = "\n\n".join(f"[{rank}] {text}" for rank, (_, text) in enumerate(passages, 1))
        messages.append(
            Message(role="tool", content=shown or "No passages found.", tool_call_id=call.id)
        )
        retrievals.append(Retrieval(query=query, chunk_ids=tuple(name for name, _ in passages)))

    text = last_text if last_text is not None else f"<answer>{answer}</answer>"
    messages.append(Message(role="assistant", content=text))
    return Trajectory(
        id=f"{question.id}#{sample}",
        question_id=question.id,
        sample=sample,
        question=question.question,
        golden_answers=question.golden_answers,
        question_type=question.metadata.question_type,
        model=model,
        prompt="tiny",
        temperature=0.7,
        messages=tuple(messages),
        retrievals=tuple(retrievals),
        answer=answer,
        stop_reason=stop,
        usage=(),
    )
