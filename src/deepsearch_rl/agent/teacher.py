"""A scripted teacher for questions of the generated world.

It knows the question's text and its plan, which names relations but no entity. It reads the first entity from the
question and every further one from passages that a search returned. Its mistakes are drawn from a seeded generator, so
that its transcripts look like those of a middling model.
"""

import random
from collections.abc import Generator, Sequence
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from deepsearch_rl.agent.chat_messages import search_call
from deepsearch_rl.agent.protocols import Reply, RolloutPolicy
from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, find_entities, read_object
from deepsearch_rl.errors import ConfigError
from deepsearch_rl.records import Message, Question, Record

Plan: TypeAlias = tuple[tuple[str, ...], ...]
_PLAN = TypeAdapter[Plan](Annotated[Plan, Field(min_length=1, max_length=2)])
MAX_SEARCHES = 5
ATTEMPTS_PER_FACT = 2


class TeacherConfig(Record):
    """How often the scripted teacher errs; probabilities."""

    partial_query: float = Field(ge=0, le=1, description="a first query has one word of a two-word name")
    misspelt_query: float = Field(ge=0, le=1, description="a first query has two letters of the name swapped")
    wrong_relation: float = Field(ge=0, le=1, description="a first query asks for another relation")
    misread: float = Field(ge=0, le=1, description="some other name in the passages is read as the object")
    give_up: float = Field(ge=0, le=1, description="the first passages without the fact end the search")


def read_plan(question: Question) -> Plan:
    """Return a question's plan, a chain of relation names per entity that it names; raise ConfigError without one."""
    try:
        plan = _PLAN.validate_python((question.metadata.model_extra or {}).get("plan"))
    except ValidationError as error:
        raise ConfigError(
            f"question {question.id} has no plan, so the scripted teacher cannot answer it; "
            "use generated questions or set synthesize.teacher to endpoint."
        ) from error
    if unknown := {name for chain in plan for name in chain} - set(IN_DOMAIN.relations):
        raise ConfigError(f"question {question.id} plans with unknown relations: {', '.join(sorted(unknown))}.")
    return plan


class ScriptedTeacher(RolloutPolicy):
    """The teacher for one rollout: it uses the question's text and plan alone; each sample has its own mistakes."""

    def __init__(self, question: Question, sample: int, config: TeacherConfig, seed: int) -> None:
        self._config = config
        self._rng = random.Random(f"{seed}/{question.id}/{sample}")
        self._searches = 0
        self._turns = self._answer(question.question, read_plan(question))

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """Return the next query, or the answer, after the passages in the last message."""
        try:
            query = self._turns.send(messages[-1].content) if self._searches else next(self._turns)
        except StopIteration as end:
            return Reply(Message(role="assistant", content=f"<answer> {end.value}</answer>"))
        self._searches += 1
        return Reply(Message(role="assistant", tool_calls=(search_call(query, self._searches),)))

    def _answer(self, question: str, plan: Plan) -> Generator[str, str, str]:
        """Follow every chain from the entity that it starts at: yield queries, get passages, return the answer."""
        ends: list[str] = []
        for head, chain in zip(find_entities(question), plan, strict=False):
            subject: str | None = head
            for relation in chain:
                subject = yield from self._look_up(relation, subject)
                if subject is None:
                    return INSUFFICIENT
            ends.append(subject)
        if len(ends) < len(plan):
            return INSUFFICIENT
        return ends[0] if len(ends) == 1 else ("yes" if ends[0] == ends[1] else "no")

    def _look_up(self, relation: str, subject: str) -> Generator[str, str, str | None]:
        """Search for one fact, a second time in other words if necessary; return its object, None if not found."""
        for query in self._queries(relation, subject)[: MAX_SEARCHES - self._searches]:
            passages = yield query
            if self._happens(self._config.misread):
                names = [name for name in find_entities(passages) if name != subject]
                return self._rng.choice(names) if names else None
            if name := read_object(IN_DOMAIN, relation, subject, passages):
                return name
            if self._happens(self._config.give_up):
                return None
        return None

    def _queries(self, relation: str, subject: str) -> list[str]:
        """Return the queries to try in turn: the wordings of the relation, sometimes after a bad query."""
        relations = IN_DOMAIN.relations
        wordings = relations[relation].queries
        good = [wording.format(subject=subject) for wording in self._rng.sample(wordings, len(wordings))]
        if self._happens(self._config.wrong_relation):
            kind = relations[relation].subject_kind
            others = [name for name in relations if relations[name].subject_kind == kind and name != relation]
            other = self._rng.choice(others or [relation])
            bad = self._rng.choice(relations[other].queries).format(subject=subject)
        elif self._happens(self._config.partial_query):
            bad = wordings[0].format(subject=self._rng.choice(subject.split()))
        elif self._happens(self._config.misspelt_query):
            pairs = [i for i in range(1, len(subject) - 2) if subject[i].isalpha() and subject[i + 1].isalpha()]
            i = self._rng.choice(pairs)
            bad = wordings[0].format(subject=subject[:i] + subject[i + 1] + subject[i] + subject[i + 2 :])
        else:
            return good[:ATTEMPTS_PER_FACT]
        return [bad, *good][:ATTEMPTS_PER_FACT]

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < probability
