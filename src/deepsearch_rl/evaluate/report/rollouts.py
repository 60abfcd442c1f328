"""The rollouts behind the F1 table: statistics over all of them, and those that the page's browser shows.

Their files are read line by line, so that memory does not grow with the run. Those to show are
packed into the page for templates/browser.js: gzipped JSON in base64, each passage once. The page's
address holds the filters, ``#model=sft&dataset=musique&outcome=wrong`` (also ``type`` and
``text``), so that a table can link to its cases. A rollout that was opened adds its ``id``, model
and set, because an id is unique within its run only.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.files import read_distinct, read_jsonl
from deepsearch_rl.core.records import Question, Record, ToolCall, Trajectory
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.evaluate.comparisons import Comparison
from deepsearch_rl.evaluate.f1_row import F1TableRow
from deepsearch_rl.evaluate.trajectory_statistics import (
    GroupStatistics,
    Tally,
    TrajectoryStatistics,
    gold_by_question,
    outcome,
)
from deepsearch_rl.search.gold import gold_evidence
from deepsearch_rl.train.filters import shown_titles

# Rollouts of every outcome to show at least, where a run has as many: the rare failures are those
# that a reader looks for
OF_EACH_OUTCOME = 5
# Questions to show, at most, of each type that turned right, or wrong, between two models
OF_EACH_TURN = 5


class RunRollouts(NamedTuple):
    """The run behind a row: statistics over all its rollouts, and the rollouts to show."""

    row: F1TableRow
    statistics: TrajectoryStatistics
    samples: tuple[Trajectory, ...]

    @property
    def figures(self) -> GroupStatistics:
        """The figures of all rollouts together."""
        return self.statistics.groups["all"]


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
    dataset: str = Field(
        description="the set, with what sets the run apart: greedy, or a variant's name"
    )
    outcome: str = Field(description="correct (F1 of 0.8 or more), wrong, or why it failed")
    type: str
    question: str
    golden: tuple[str, ...]
    answer: str
    f1: float
    error: str
    facts: tuple[str, ...] = Field(description="gold facts, where they are known")
    titles: tuple[tuple[str, ...], ...] = Field(
        default=(),
        description="gold documents, where no fact is known: the title, then its other spellings in the passages shown",
    )
    messages: tuple[ShownMessage, ...]


def read_questions(paths: Mapping[str, Path]) -> dict[str, dict[str, Question]]:
    """Return the questions of every set, by id."""
    questions: dict[str, dict[str, Question]] = {}
    for name, path in paths.items():
        questions[name] = {question.id: question for question in read_distinct(path, Question)}

    return questions


def turned_questions(comparisons: Iterable[Comparison]) -> dict[tuple[str, str], set[str]]:
    """Return by model and run the ids of some questions that turned right or wrong between two models.

    They are the first :data:`OF_EACH_TURN` of each type of question and direction.
    """
    ids_of_run: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in comparisons:
        for change in entry.types.values():
            ids = {*change.gained[:OF_EACH_TURN], *change.lost[:OF_EACH_TURN]}
            # Of both models, so that their answers can be read side by side
            for model in (entry.model, entry.other):
                ids_of_run[model, entry.run_name] |= ids

    return dict(ids_of_run)


def read_runs(
    folders: Mapping[str, Path],
    rows: Iterable[F1TableRow],
    questions: Mapping[str, Mapping[str, Question]],
    count: int,
    turned: Mapping[tuple[str, str], Set[str]],
) -> Iterator[RunRollouts]:
    """Yield the run of every row; of each, ``count`` rollouts are to be shown (:func:`positions_to_show`).

    The first rollouts of the questions ``turned`` (:func:`turned_questions`) are shown as well.
    ``folders`` holds every model's evaluation, ``questions`` the questions by set and id, for their
    gold evidence.
    """
    gold = {name: gold_by_question(of_set.values()) for name, of_set in questions.items()}
    for row in rows:
        path = folders[row.model] / row.rollouts_file
        tally = Tally(gold.get(row.dataset, {}))
        outcomes: list[str] = []
        ids = turned.get((row.model, row.run_name), frozenset[str]()) if count else ()
        places: set[int] = set()

        for rollout in read_distinct(path, Trajectory):
            tally.add(rollout)
            if rollout.sample == 0 and rollout.question_id in ids:
                places.add(len(outcomes))
            outcomes.append(outcome(rollout))

        # Read again: which to show is known at the end, and all of them do not fit into memory
        positions = positions_to_show(outcomes, count) | places
        samples: list[Trajectory] = []
        for position, rollout in enumerate(read_jsonl(path, Trajectory) if positions else ()):
            if position in positions:
                samples.append(rollout)

        yield RunRollouts(row, tally.statistics(), tuple(samples))


def positions_to_show(outcomes: Sequence[str], count: int) -> frozenset[int]:
    """Return the positions of ``count`` rollouts spread evenly, so that nobody picks the good ones.

    Where an outcome occurs fewer than :data:`OF_EACH_OUTCOME` times among these, as many rollouts
    with it are added, spread evenly over all that have it. There are no positions if ``count`` is
    0.
    """
    if not count:
        return frozenset()
    by_outcome: defaultdict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(outcomes):
        by_outcome[name].append(position)
    positions = set(_spread(range(len(outcomes)), count))
    for candidates in by_outcome.values():
        if len(positions.intersection(candidates)) < OF_EACH_OUTCOME:
            positions.update(_spread(candidates, OF_EACH_OUTCOME))

    return frozenset(positions)


def _spread(positions: Sequence[int], count: int) -> list[int]:
    total = min(count, len(positions))
    return [positions[step * len(positions) // total] for step in range(total)]


def shown_rollouts(
    runs: Iterable[RunRollouts], questions: Mapping[str, Mapping[str, Question]]
) -> Iterator[ShownRollout]:
    """Yield the rollouts to show, run by run; ``questions`` are the questions by set and id."""
    for run in runs:
        questions_of_set = questions.get(run.row.dataset, {})
        for rollout in run.samples:
            yield _shown_rollout(run.row, rollout, questions_of_set.get(rollout.question_id))


def _shown_rollout(row: F1TableRow, rollout: Trajectory, question: Question | None) -> ShownRollout:
    facts: list[str] = []
    titles: tuple[tuple[str, ...], ...] = ()
    if question is not None:
        for evidence in question.metadata.evidence_list or ():
            if evidence.fact.strip():
                facts.append(evidence.fact)
        gold = gold_evidence(question)
        if gold is not None and gold.kind == "titles":
            titles = _spelled(gold.items, rollout)

    messages: list[ShownMessage] = []
    for message in rollout.messages:
        shown_message = ShownMessage(
            role=message.role,
            text=message.content,
            reasoning=message.reasoning or "",
            queries=tuple(map(_query, message.tool_calls)),
        )
        messages.append(shown_message)

    return ShownRollout(
        id=rollout.id,
        question=rollout.question,
        answer=rollout.answer,
        model=row.model,
        dataset=row.run_name,
        outcome=outcome(rollout),
        type=rollout.question_type,
        golden=rollout.golden_answers,
        f1=round(score_rollout(rollout).f1, 3),
        error=rollout.error or "",
        facts=tuple(facts),
        titles=titles,
        messages=tuple(messages),
    )


def _spelled(titles: Iterable[str], rollout: Trajectory) -> tuple[tuple[str, ...], ...]:
    """Return each title with the other spellings of it in the rollout's passages, because the page knows no rule."""
    spellings: defaultdict[str, set[str]] = defaultdict(set)
    for title in shown_titles("\n".join(rollout.tool_texts)):
        spellings[title_key(title)].add(title)

    result: list[tuple[str, ...]] = []
    for title in titles:
        others = spellings[title_key(title)] - {title}
        result.append((title, *sorted(others)))

    return tuple(result)


def _query(call: ToolCall) -> str:
    """Return the query of a search, or the call as written where it is anything else."""
    match call.parsed:
        case {"query": str(query), **others} if not others:
            return query

    return f"{call.name}({call.arguments})"


def pack(rollouts: Sequence[ShownRollout]) -> str:
    """Return rollouts as base64 of gzipped JSON; equal rollouts give equal text.

    The JSON is ``{"passages": [...], "rollouts": [...]}``; the text of a tool message is the list
    of its paragraphs' positions in ``passages``.
    """
    passages: dict[str, int] = {}
    rows = [rollout.model_dump(mode="json", exclude_defaults=True) for rollout in rollouts]

    for row in rows:
        for message in row["messages"]:
            if message["role"] != "tool":
                continue
            # An empty line stands between passages, under either protocol
            parts = message["text"].split("\n\n")
            message["text"] = [passages.setdefault(part, len(passages)) for part in parts]

    content = json.dumps(
        {"passages": list(passages), "rollouts": rows}, ensure_ascii=False, separators=(",", ":")
    )
    # Without the time of day, which gzip would write into its header
    return base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode("ascii")
