"""The report's trajectory browser: rollouts of every run, packed into the page and read there by browser.js.

The rollouts travel as gzipped JSON in base64, a tenth of their size, so that the page stays one file that can be mailed
and kept in git. Of each run the same number is kept (fewer where it has fewer), spread evenly over its rollouts in the
order of their ids, so that nobody picks the pretty ones.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from deepsearch_rl.answers import SUCCESS_F1
from deepsearch_rl.evaluation.markup import Markup, paragraph
from deepsearch_rl.evaluation.rows import F1TableRow, run_file
from deepsearch_rl.evaluation.score import score_rollout
from deepsearch_rl.files import read_jsonl
from deepsearch_rl.records import Message, Question, Record, Trajectory

SCRIPT = Path(__file__).with_name("browser.js")
CORRECT, WRONG = "correct", "wrong"
"""How an answered rollout came out; one that failed is named by its stop reason."""


class ShownMessage(Record):
    """A message of a conversation; ``queries`` are the arguments of its calls as the model wrote them."""

    role: str
    text: str
    reasoning: str = ""
    queries: tuple[str, ...] = ()


class ShownRollout(Record):
    """What the page shows of one rollout."""

    id: str
    model: str
    dataset: str
    outcome: str = Field(description="correct (F1 of 0.8 or more), wrong, or why it failed")
    type: str
    question: str
    golden: tuple[str, ...]
    answer: str
    f1: float
    error: str
    facts: tuple[str, ...] = Field(description="gold facts, where they are known")
    messages: tuple[ShownMessage, ...]


def read_rollouts(
    folders: Mapping[str, Path], rows: Iterable[F1TableRow], questions: Mapping[str, Path], per_run: int
) -> list[ShownRollout]:
    """At most ``per_run`` rollouts of every run of the F1 table.

    Args:
        folders: evaluated model -> folder with its rollouts.
        rows: the runs.
        questions: question set -> file of its questions, for their gold facts.
        per_run: rollouts of each run.

    Raises:
        ArtifactError, RecordError: a file is missing or malformed.
    """
    facts = {name: _facts(path) for name, path in questions.items()} if per_run else {}
    shown: list[ShownRollout] = []
    for row in rows if per_run else ():
        path = folders[row.model] / run_file(row.dataset, "search", row.temperature)
        name = row.dataset + ("" if row.main else ", greedy")
        rollouts = _spread(list(read_jsonl(path, Trajectory)), per_run)
        shown += [_shown(one, row.model, name, facts[row.dataset].get(one.question_id, ())) for one in rollouts]
    return shown


def _facts(path: Path) -> dict[str, tuple[str, ...]]:
    return {
        question.id: tuple(evidence.fact for evidence in question.metadata.evidence_list or ())
        for question in read_jsonl(path, Question)
    }


def _spread(rollouts: Sequence[Trajectory], count: int) -> list[Trajectory]:
    taken = min(count, len(rollouts))
    return [rollouts[position * len(rollouts) // taken] for position in range(taken)]


def _shown(one: Trajectory, model: str, dataset: str, facts: tuple[str, ...]) -> ShownRollout:
    f1 = score_rollout(one).f1
    return ShownRollout(
        id=one.id,
        model=model,
        dataset=dataset,
        outcome=str(one.stop_reason) if one.failed else CORRECT if f1 >= SUCCESS_F1 else WRONG,
        type=one.question_type,
        question=one.question,
        golden=one.golden_answers,
        answer=one.answer,
        f1=round(f1, 3),
        error=one.error or "",
        facts=facts,
        messages=tuple(_shown_message(message) for message in one.messages),
    )


def _shown_message(message: Message) -> ShownMessage:
    queries = tuple(call.arguments for call in message.tool_calls)
    return ShownMessage(role=message.role, text=message.content, reasoning=message.reasoning or "", queries=queries)


def pack(rollouts: Sequence[ShownRollout]) -> str:
    """Rollouts as base64 of gzipped JSON; equal rollouts give equal text."""
    rows = [rollout.model_dump(mode="json", exclude_defaults=True) for rollout in rollouts]
    packed = gzip.compress(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode(), mtime=0)
    return base64.b64encode(packed).decode("ascii")


def browser_section(rollouts: Sequence[ShownRollout]) -> list[Markup]:
    """The browser with its rollouts."""
    if not rollouts:
        return [paragraph("The report was made without rollouts (`report.rollouts`).")]
    return [
        paragraph(
            f"{len(rollouts)} rollouts, spread evenly over each run. In a conversation the "
            "passages that the model was shown carry the gold facts in yellow. Arrow keys walk through the list.",
            "note",
        ),
        Markup(_CONTROLS),
        Markup(f'<script type="text/plain" id="rollouts">{pack(rollouts)}</script>'),
        Markup(f"<script>\n{SCRIPT.read_text(encoding='utf-8')}</script>"),
    ]


def _select(name: str, label: str) -> str:
    return f'<label>{label}<select name="{name}"><option value="">all</option></select></label>'


_CONTROLS = (
    '<form class="filters" id="filters" aria-label="Which rollouts">'
    + _select("model", "model")
    + _select("dataset", "set")
    + _select("type", "type")
    + _select("outcome", "outcome")
    + '<label class="wide">text<input type="search" name="text" placeholder="in question, answer or conversation">'
    "</label></form>"
    '<p class="note" id="count" role="status">Unpacking the rollouts.</p>'
    '<noscript><p class="note">Rollouts need JavaScript; everything else on this page does not.</p></noscript>'
    '<div class="browser"><ol id="list" aria-label="Rollouts"></ol>'
    '<article id="rollout" aria-label="The chosen rollout" tabindex="0"></article></div>'
)
