"""A scripted teacher: a policy that answers questions of the generated world without any model.

It goes through the same loop, tool and retriever as a real model and knows as little: the question's text and its plan,
which names relations ("headquarters", "mayor", "employer") but no entity. The first entity is read from the question,
every further one from passages that a search returned; what no passage states stays unknown, and the answer is then
"Insufficient information.".

Its mistakes are drawn from a seeded generator, so that its transcripts look like those of a middling model: queries
with half a name or for the wrong relation, repaired after one look at the passages; names misread from a passage, which
are not noticed; giving up early.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deepsearch_rl.agent.policy import Reply
from deepsearch_rl.agent.tool import search_call
from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, Grammar, find_entities, read_object
from deepsearch_rl.errors import ConfigError
from deepsearch_rl.records import Message, Question, Record

MAX_SEARCHES = 5
ATTEMPTS_PER_FACT = 2
Turns = Generator[str, str, str]
"""Yields queries, is sent the passages, returns the answer."""
Lookup = Generator[str, str, str | None]
"""Yields queries, is sent the passages, returns the object that was read, None where none was found."""


class TeacherConfig(Record):
    """How often the scripted teacher errs; probabilities."""

    partial_query: float = Field(ge=0, le=1, description="a first query has one word of a two-word name")
    misspelt_query: float = Field(ge=0, le=1, description="a first query has two letters of the name swapped")
    wrong_relation: float = Field(ge=0, le=1, description="a first query asks for another relation")
    misread: float = Field(ge=0, le=1, description="a look at passages ends with some other name in them")
    give_up: float = Field(ge=0, le=1, description="a look at passages without the fact ends the search")


class Plan(BaseModel):
    """What the teacher is told: one chain of relation names per entity named in the question."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    plan: tuple[tuple[str, ...], ...] = Field(min_length=1, max_length=2)


def read_plan(question: Question, grammar: Grammar = IN_DOMAIN) -> Plan:
    """The plan of a generated question.

    Raises:
        ConfigError: the question has none, or one with a relation that the grammar does not have.
    """
    try:
        plan = Plan.model_validate(question.metadata.model_extra)
    except ValidationError as error:
        raise ConfigError(
            f"question {question.id} has no plan, so the scripted teacher cannot answer it; "
            "use generated questions or set synthesize.teacher to endpoint."
        ) from error
    if unknown := {name for chain in plan.plan for name in chain} - set(grammar.relations):
        raise ConfigError(f"question {question.id} plans with unknown relations: {', '.join(sorted(unknown))}.")
    return plan


class ScriptedTeacher:
    """The teacher for one rollout.

    Args:
        question: its text is read; of its metadata the plan alone.
        sample: number of the rollout; every one draws mistakes of its own.
        config: how often it errs.
        seed: of the mistakes.
    """

    def __init__(self, question: Question, sample: int, config: TeacherConfig, seed: int) -> None:
        rng = random.Random(f"{seed}/{question.id}/{sample}")
        self._turns = _Script(IN_DOMAIN, config, rng).answer(question.question, read_plan(question).plan)
        self._calls = 0

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """The next query, or the answer, after the passages in the last message."""
        return Reply(self._next(messages[-1].content))

    def _next(self, passages: str) -> Message:
        try:
            query = self._turns.send(passages) if self._calls else next(self._turns)
        except StopIteration as end:
            return Message(role="assistant", content=f"<answer> {end.value}</answer>")
        self._calls += 1
        return Message(role="assistant", tool_calls=(search_call(query, self._calls),))


@dataclass(frozen=True, slots=True)
class _Script:
    grammar: Grammar
    config: TeacherConfig
    rng: random.Random

    def answer(self, question: str, plan: tuple[tuple[str, ...], ...]) -> Turns:
        """Follow every chain from the entity that it starts at; two chains are compared."""
        ends: list[str] = []
        searches = 0
        for head, chain in zip(find_entities(question), plan, strict=False):
            subject = head
            for relation in chain:
                lookup = self.look_up(relation, subject, MAX_SEARCHES - searches)
                found, used = yield from _counted(lookup)
                searches += used
                if found is None:
                    return INSUFFICIENT
                subject = found
            ends.append(subject)
        if len(ends) < len(plan):
            return INSUFFICIENT
        return ends[0] if len(ends) == 1 else ("yes" if ends[0] == ends[1] else "no")

    def look_up(self, relation: str, subject: str, searches_left: int) -> Lookup:
        """Search for one fact, once more in other words if need be."""
        queries = self._queries(relation, subject)
        for query in queries[:searches_left]:
            passages = yield query
            if self._happens(self.config.misread):
                return self._some_name(passages, subject)
            if found := read_object(self.grammar, relation, subject, passages):
                return found
            if self._happens(self.config.give_up):
                return None
        return None

    def _queries(self, relation: str, subject: str) -> list[str]:
        """The queries that are tried in turn: every wording of the relation, after a bad query now and then."""
        wordings = self.grammar.relations[relation].queries
        good = [wording.format(subject=subject) for wording in self.rng.sample(wordings, len(wordings))]
        if self._happens(self.config.wrong_relation):
            other = self.rng.choice(self._relations_beside(relation))
            bad = self.rng.choice(self.grammar.relations[other].queries).format(subject=subject)
        elif self._happens(self.config.partial_query):
            bad = wordings[0].format(subject=self.rng.choice(subject.split()))
        elif self._happens(self.config.misspelt_query):
            bad = wordings[0].format(subject=_swap_letters(subject, self.rng))
        else:
            return good[:ATTEMPTS_PER_FACT]
        return [bad, *good][:ATTEMPTS_PER_FACT]

    def _relations_beside(self, name: str) -> list[str]:
        kind = self.grammar.relations[name].subject_kind
        beside = [other for other, relation in self.grammar.relations.items() if relation.subject_kind == kind]
        return [other for other in beside if other != name] or [name]

    def _some_name(self, passages: str, subject: str) -> str | None:
        names = [name for name in find_entities(passages) if name != subject]
        return self.rng.choice(names) if names else None

    def _happens(self, probability: float) -> bool:
        return self.rng.random() < probability


def _counted(lookup: Lookup) -> Generator[str, str, tuple[str | None, int]]:
    """Pass a lookup's queries on and return what it found with how many there were."""
    count = 0
    try:
        query = next(lookup)
        while True:
            count += 1
            query = lookup.send((yield query))
    except StopIteration as end:
        return end.value, count


def _swap_letters(name: str, rng: random.Random) -> str:
    place = rng.choice([i for i in range(1, len(name) - 2) if name[i].isalpha() and name[i + 1].isalpha()])
    return name[:place] + name[place + 1] + name[place] + name[place + 2 :]
