"""A scripted teacher for questions of the generated world.

It knows the question's text and its plan, which names relations but no entity. Before a search it
writes down the rest of the plan. It reads the first entity from the question and every further one
from passages that a search returned, and writes each down. It usually gives up after ``max_facts``
facts and does not know the second words of relations: that is left to reinforcement learning. Its
mistakes come from a seeded generator, so that its transcripts look like those of a mediocre model.
"""

import random
from collections.abc import Generator, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from deepsearch_rl.agent.config import ScriptedConfig
from deepsearch_rl.agent.protocols import AgentProtocol, Reply, RolloutPolicy
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Message, Question
from deepsearch_rl.toy.grammar import (
    IN_DOMAIN,
    find_entities,
    read_object,
    write_note,
    write_plan,
    write_query,
)

_PLAN = TypeAdapter[tuple[str, ...]](Annotated[tuple[str, ...], Field(min_length=1)])


def read_plan(question: Question) -> tuple[str, ...]:
    """Return a question's plan, the relations to follow from the entity that it names; raise ConfigError without."""
    try:
        plan = _PLAN.validate_python((question.metadata.model_extra or {}).get("plan"))
    except ValidationError as error:
        raise ConfigError(
            f"question {question.id} has no plan, so the scripted teacher cannot answer it; "
            "use generated questions, or let synthesize.teacher name the folder of a model."
        ) from error

    if unknown := set(plan) - set(IN_DOMAIN.relations):
        raise ConfigError(
            f"question {question.id} plans with unknown relations: {', '.join(sorted(unknown))}."
        )

    return plan


class ScriptedTeacher(RolloutPolicy):
    """The teacher for one rollout: it uses the question's text and plan alone; each sample has its own mistakes."""

    def __init__(
        self,
        question: Question,
        sample: int,
        config: ScriptedConfig,
        seed: int,
        protocol: AgentProtocol,
    ) -> None:
        self._config = config
        self._protocol = protocol
        self._rng = random.Random(f"{seed}/{question.id}/{sample}")
        self._searches = 0
        plan = read_plan(question)
        if len(plan) > config.max_facts and self._happens(config.gives_up):
            plan = plan[: config.max_facts]
        self._turns = self._answer(question.question, plan)

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """Return the next query, or the answer, after a note of what the last message says."""
        try:
            note, query = (
                self._turns.send(messages[-1].content) if self._searches else next(self._turns)
            )
        except StopIteration as end:
            note, answer = end.value
            return Reply(Message(role="assistant", content=f"{note}\n<answer> {answer}</answer>"))

        self._searches += 1
        return Reply(self._protocol.search_turn(query, self._searches, note))

    def _answer(
        self, question: str, plan: Sequence[str]
    ) -> Generator[tuple[str, str], str, tuple[str, str]]:
        """Follow the plan from the entity that the question names: yield what it writes down and a query each.

        It writes down the last fact and what is left of the plan.
        """
        subject = find_entities(question)[0]
        note = ""

        for place, noun in enumerate(plan):
            bad = self._bad_query(noun, subject)
            left = write_plan(plan[place:])
            text = f"{note}\n{left}" if note else left
            passages = yield text, bad or write_query(subject, noun)
            name = self._read(noun, subject, passages)
            # Asked again in other words: so the trained model learns to try a second query
            if bad and not name:
                nothing = write_note(noun, None)
                passages = yield f"{nothing}\n{left}", write_query(subject, noun)
                name = self._read(noun, subject, passages)

            note = write_note(noun, name)
            if not name:
                return note, INSUFFICIENT
            subject = name

        return note, subject

    def _read(self, noun: str, subject: str, passages: str) -> str | None:
        if self._happens(self._config.misread):
            names = [name for name in find_entities(passages) if name != subject]
            return self._rng.choice(names) if names else None
        return read_object(noun, subject, passages)

    def _bad_query(self, noun: str, subject: str) -> str | None:
        """Return a query that asks wrongly, now and then."""
        relations = IN_DOMAIN.relations_of(IN_DOMAIN.relations[noun].subject_kind)
        others = [relation.noun for relation in relations if relation.noun != noun]
        if others and self._happens(self._config.wrong_relation):
            return write_query(subject, self._rng.choice(others))
        if self._happens(self._config.partial_query):
            return write_query(self._rng.choice(subject.split()), noun)
        if self._happens(self._config.misspelt_query):
            # Neighbouring letters inside of the name
            places: list[int] = []
            for place in range(1, len(subject) - 2):
                if subject[place].isalpha() and subject[place + 1].isalpha():
                    places.append(place)

            i = self._rng.choice(places)
            return write_query(subject[:i] + subject[i + 1] + subject[i] + subject[i + 2 :], noun)

        return None

    def _happens(self, probability: float) -> bool:
        return self._rng.random() < probability
