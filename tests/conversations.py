"""Conversations of an agent that searches, as trajectories."""

import json
from collections.abc import Callable, Iterable

from deepsearch_rl.core.records import Message, StopReason, ToolCall, Trajectory

Turn = tuple[str | None, str, Iterable[str]]
"""Reasoning, text and queries."""


def conversation_of(turns: Iterable[Turn], passages_of: Callable[[ToolCall], str]) -> Trajectory:
    """A trajectory of these assistant turns; ``passages_of`` writes what each call brings."""
    messages = [
        Message(role="system", content="Search."),
        Message(role="user", content="Who is mayor?"),
    ]
    for number, (reasoning, text, queries) in enumerate(turns):
        arguments = [json.dumps({"query": query}, ensure_ascii=False) for query in queries]
        calls = [
            ToolCall(id=f"{number}.{n}", name="retrieve", arguments=raw)
            for n, raw in enumerate(arguments)
        ]
        messages.append(
            Message(role="assistant", content=text, reasoning=reasoning, tool_calls=tuple(calls))
        )
        messages += [
            Message(role="tool", content=passages_of(call), tool_call_id=call.id) for call in calls
        ]
    return Trajectory(
        id="q#0",
        question_id="q",
        sample=0,
        question="Who is mayor?",
        golden_answers=("Kaspar Granger",),
        model="m",
        prompt="tiny",
        temperature=0,
        messages=tuple(messages),
        stop_reason=StopReason.ANSWERED,
    )
