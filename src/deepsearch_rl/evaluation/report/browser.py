"""Rollouts packed into the page for its trajectory browser (templates/browser.js).

They are gzipped JSON in base64, each passage stored once, so that the page stays one file that can be mailed and
committed. The page's address holds the filters, ``#model=sft&dataset=musique&outcome=wrong`` (also ``type`` and
``text``), so that a table can link to its cases. A rollout that was opened adds its ``id``, model and set, because an
id is unique within its run only: a link to the case can be sent to somebody.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from deepsearch_rl.answers import score_rollout
from deepsearch_rl.evaluation.report.sources import RunRollouts
from deepsearch_rl.records import Question, Record, ToolCall
from deepsearch_rl.retrieval.gold import gold_evidence
from deepsearch_rl.trajectories.statistics import outcome


class ShownMessage(Record):
    """A message of a conversation; ``queries`` are the queries of its searches, or other calls as written."""

    role: str
    text: str
    reasoning: str = ""
    queries: tuple[str, ...] = ()


class ShownRollout(Record):
    """What the page shows of one rollout."""

    id: str
    model: str
    dataset: str = Field(description="the set, with what sets the run apart: greedy, or a variant's name")
    outcome: str = Field(description="correct (F1 of 0.8 or more), wrong, or why it failed")
    type: str
    question: str
    golden: tuple[str, ...]
    answer: str
    f1: float
    error: str
    facts: tuple[str, ...] = Field(description="gold facts, where they are known")
    titles: tuple[str, ...] = Field(default=(), description="titles of gold documents, where no fact is known")
    messages: tuple[ShownMessage, ...]


def shown_rollouts(runs: Iterable[RunRollouts], questions: Mapping[str, Mapping[str, Question]]) -> list[ShownRollout]:
    """Return the rollouts to show, run by run; ``questions`` are the questions by set and id."""
    shown: list[ShownRollout] = []
    for row, rollout in ((run.row, rollout) for run in runs for rollout in run.samples):
        question = questions.get(row.dataset, {}).get(rollout.question_id)
        gold = gold_evidence(question) if question else None
        evidence = question.metadata.evidence_list if question else None
        entry = ShownRollout(
            id=rollout.id,
            model=row.model,
            dataset=row.run_name,
            outcome=outcome(rollout),
            type=rollout.question_type,
            question=rollout.question,
            golden=rollout.golden_answers,
            answer=rollout.answer,
            f1=round(score_rollout(rollout).f1, 3),
            error=rollout.error or "",
            facts=tuple(piece.fact for piece in evidence or () if piece.fact.strip()),
            titles=gold.items if gold and gold.kind == "titles" else (),
            messages=tuple(
                ShownMessage(
                    role=message.role,
                    text=message.content,
                    reasoning=message.reasoning or "",
                    queries=tuple(map(_query, message.tool_calls)),
                )
                for message in rollout.messages
            ),
        )
        shown.append(entry)
    return shown


def _query(call: ToolCall) -> str:
    """Return the query of a search, or the call as written where it is anything else."""
    match call.parsed:
        case {"query": str(query), **others} if not others:
            return query
    return f"{call.name}({call.arguments})"


def pack(rollouts: Sequence[ShownRollout]) -> str:
    """Return rollouts as base64 of gzipped JSON; equal rollouts give equal text.

    The JSON is ``{"passages": [...], "rollouts": [...]}``; the text of a tool message is the list of its paragraphs'
    positions in ``passages``.
    """
    passages: dict[str, int] = {}
    rows = [rollout.model_dump(mode="json", exclude_defaults=True) for rollout in rollouts]
    for message in (message for row in rows for message in row["messages"]):
        if message["role"] == "tool":  # an empty line stands between passages, under either protocol
            message["text"] = [passages.setdefault(part, len(passages)) for part in message["text"].split("\n\n")]
    content = json.dumps({"passages": list(passages), "rollouts": rows}, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode("ascii")
