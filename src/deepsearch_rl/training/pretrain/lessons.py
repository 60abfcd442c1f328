"""What the base model learns from: generated conversations, easy ones first.

Three lessons, all in the exact layout of real rollouts:

- *reading*: passages and questions about them; the answers are names to be copied;
- *searching*: a question and the call that would look up its first fact;
- *demonstration*: a question, one call, three passages, an answer. These are rough: a question of several hops is
  answered after one search as if it had one, so the base model ends where a teacher would go on.

A :class:`Level` says how long passages are and how the lessons are mixed; a curriculum is a list of levels.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field, JsonValue

from deepsearch_rl.agent.tool import RETRIEVE_TOOL, format_passages
from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import Grammar, Relation
from deepsearch_rl.records import Record
from deepsearch_rl.training.pretrain.scenes import Names, Passage, draw_passage, passage_about, relations_of

Turn = dict[str, JsonValue]


class Level(Record):
    """One level of the curriculum."""

    tokens: int = Field(ge=0, description="tokens trained on at this level")
    passages: tuple[int, int] = Field(description="fewest and most passages of a reading lesson")
    facts: tuple[int, int] = Field(description="fewest and most facts of a passage")
    fillers: tuple[int, int] = Field(description="fewest and most sentences without a fact of a passage")
    questions: tuple[int, int] = Field(description="fewest and most questions of a reading lesson")
    searching: float = Field(ge=0, le=1, description="share of the lessons that only write a search")
    demonstrations: float = Field(ge=0, le=1, description="share of the lessons that are demonstrations")


class LessonConfig(Record):
    """What all levels share."""

    strange_names: float = Field(ge=0, le=1, description="share of names made of words of another world's names")
    unanswerable: float = Field(ge=0, le=1, description="share of questions that no passage answers")
    without_system: float = Field(ge=0, le=1, description="share of tool conversations without the system block")
    wrong_query: float = Field(ge=0, le=1, description="share of demonstrations whose query names another relation")
    wrong_answer: float = Field(ge=0, le=1, description="share of demonstrations that answer with some name they read")
    hops: tuple[float, ...] = Field(description="shares of demonstrations with 1, 2, ... hops")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A conversation as the chat template takes it."""

    turns: tuple[Turn, ...]
    with_tools: bool


@dataclass(frozen=True, slots=True)
class Tutor:
    """Writes lessons about random facts of one grammar."""

    grammar: Grammar
    names: Names
    prompt: str
    config: LessonConfig

    def lessons(self, level: Level, rng: random.Random) -> Iterator[Lesson]:
        """Endless lessons of a level."""
        while True:
            draw = rng.random()
            if draw < level.demonstrations:
                yield self._demonstration(level, rng)
            elif draw < level.demonstrations + level.searching:
                yield self._searching(rng)
            else:
                yield self._reading(level, rng)

    def _reading(self, level: Level, rng: random.Random) -> Lesson:
        passages = [self._passage(level, rng) for _ in range(rng.randint(*level.passages))]
        turns: list[Turn] = []
        facts = [fact for passage in passages for fact in passage.facts]
        for fact in rng.sample(facts, min(rng.randint(*level.questions), len(facts))):
            question, answer = self._question([fact.relation], fact.subject, rng), fact.object
            if rng.random() < self.config.unanswerable:
                question, answer = self._unanswerable(passages, rng)
            text = question if turns else f"{_show(passages)}\n\n{question}"
            turns += [_user(text), _answer(answer)]
        return Lesson(tuple(turns), with_tools=False)

    def _searching(self, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng)
        return self._tool_lesson([_user(self._question(chain, head, rng)), _call(chain[0], head, rng)], rng)

    def _demonstration(self, level: Level, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng)
        kind = self.grammar.kinds[chain[0].subject_kind]
        searched = chain[0] if rng.random() >= self.config.wrong_query else rng.choice(relations_of(self.grammar, kind))
        missing = rng.random() < self.config.unanswerable
        stated = {} if missing else {searched.name: self.names.draw(self.grammar.kinds[searched.object_kind], rng)}
        about = self._passage(level, rng, searched.subject_kind, head, stated)
        others = [self._passage(level, rng) for _ in range(2)]
        passages = [about, *others]
        if rng.random() < 0.3:
            rng.shuffle(passages)
        fact = next((fact for fact in about.facts if fact.relation is searched), None)
        answer = fact.object if fact else INSUFFICIENT
        if rng.random() < self.config.wrong_answer:
            answer = rng.choice([fact.object for passage in passages for fact in passage.facts] or [INSUFFICIENT])
        turns = [_user(self._question(chain, head, rng)), _call(searched, head, rng), _response(passages)]
        return self._tool_lesson([*turns, _answer(answer)], rng)

    def _tool_lesson(self, turns: Sequence[Turn], rng: random.Random) -> Lesson:
        if rng.random() < self.config.without_system:
            return Lesson(tuple(turns), with_tools=False)
        return Lesson(({"role": "system", "content": self.prompt}, *turns), with_tools=True)

    def _passage(
        self, level: Level, rng: random.Random, kind: str = "", subject: str = "", stated: dict[str, str] | None = None
    ) -> Passage:
        facts, fillers = (range(low, high + 1) for low, high in (level.facts, level.fillers))
        if not subject:
            return draw_passage(self.grammar, self.names, facts, fillers, rng)
        of_kind = self.grammar.kinds[kind]
        return passage_about(self.grammar, self.names, of_kind, subject, stated or {}, facts, fillers, rng)

    def _chain(self, rng: random.Random) -> tuple[list[Relation], str]:
        """A chain of relations, first hop first, and a head entity."""
        hops = rng.choices(range(1, len(self.config.hops) + 1), self.config.hops)[0]
        chain = [rng.choice(list(self.grammar.relations.values()))]
        while len(chain) < hops:
            chain.append(rng.choice(relations_of(self.grammar, self.grammar.kinds[chain[-1].object_kind])))
        return chain, self.names.draw(self.grammar.kinds[chain[0].subject_kind], rng)

    def _question(self, chain: Sequence[Relation], head: str, rng: random.Random) -> str:
        path = self.grammar.path(tuple(relation.name for relation in chain), head)
        wordings = self.grammar.questions["person" if chain[-1].object_kind == "person" else "other"]
        return rng.choice(wordings).format(path=path)

    def _unanswerable(self, passages: Sequence[Passage], rng: random.Random) -> tuple[str, str]:
        passage = rng.choice(passages)
        stated = {fact.relation.name for fact in passage.facts}
        missing = [relation for relation in relations_of(self.grammar, passage.kind) if relation.name not in stated]
        subject = passage.subject if missing else self.names.draw(passage.kind, rng)
        relation = rng.choice(missing or relations_of(self.grammar, passage.kind))
        return self._question([relation], subject, rng), INSUFFICIENT


def _show(passages: Sequence[Passage]) -> str:
    return format_passages([passage.chunk for passage in passages])


def _user(text: str) -> Turn:
    return {"role": "user", "content": text}


def _answer(name: str) -> Turn:
    return {"role": "assistant", "content": f"<answer> {name}</answer>"}


def _response(passages: Sequence[Passage]) -> Turn:
    return {"role": "tool", "content": _show(passages)}


def _call(relation: Relation, subject: str, rng: random.Random) -> Turn:
    name: JsonValue = RETRIEVE_TOOL["function"]["name"]  # type: ignore[index,call-overload]
    arguments = json.dumps({"query": rng.choice(relation.queries).format(subject=subject)})
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
