"""What the base model learns from: generated conversations, easy ones first.

Six lessons, all in the exact layout of real rollouts:

- *repeating*: a list of names to be said again; nothing teaches copying sooner;
- *reading*: passages and questions about them; the answers are names to be copied;
- *reasoning*: passages and a question of several hops, answered one fact a line; the skill that search lacks below;
- *searching*: a question and the call that would look up its first fact;
- *continuing*: a question of several hops, some of its searches with what they found, and the next call; it teaches to
  look back at the question after reading, and never how such a search ends;
- *demonstration*: a question, one call, three passages, an answer. These are rough: a question of several hops is
  answered after one search as if it had one, so the base model ends where a teacher would go on.

A :class:`Level` says how long passages are and how the lessons are mixed; a curriculum is a list of levels.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import Field, JsonValue

from deepsearch_rl.agent.tool import RETRIEVE_TOOL, format_passages
from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import Grammar, Relation
from deepsearch_rl.records import Record
from deepsearch_rl.training.pretrain.scenes import Names, Scene, relations_of

Turn = dict[str, JsonValue]
RESULTS = 3
"""Passages that a search returns in a demonstration."""


class Level(Record):
    """One level of the curriculum."""

    tokens: int = Field(ge=0, description="tokens trained on at this level")
    passages: tuple[int, int] = Field(description="fewest and most passages of a reading lesson")
    facts: tuple[int, int] = Field(description="fewest and most facts of a passage")
    fillers: tuple[int, int] = Field(description="fewest and most sentences without a fact of a passage")
    questions: tuple[int, int] = Field(description="fewest and most questions of a reading lesson")
    repeating: float = Field(ge=0, le=1, description="share of the lessons that repeat names")
    reasoning: float = Field(ge=0, le=1, description="share of the lessons that follow a chain of facts step by step")
    searching: float = Field(ge=0, le=1, description="share of the lessons that only write a search")
    continuing: float = Field(ge=0, le=1, description="share of the lessons that write a search after others")
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
            shares = (level.demonstrations, level.searching, level.continuing, level.reasoning, level.repeating)
            write = rng.choices(
                (
                    self._demonstration,
                    self._searching,
                    self._continuing,
                    self._reasoning,
                    self._repeating,
                    self._reading,
                ),
                (*shares, 1 - sum(shares)),
            )[0]
            yield write(level, rng)

    def _repeating(self, _: Level, rng: random.Random) -> Lesson:
        kinds = list(self.grammar.kinds.values())
        names = ", ".join(self.names.draw(rng.choice(kinds), rng) for _ in range(rng.randint(2, 12)))
        return Lesson((_user(f"Name {names}."), _answer(names)), with_tools=False)

    def _reading(self, level: Level, rng: random.Random) -> Lesson:
        scene = self._scene(level, rng)
        for _ in range(rng.randint(*level.passages)):
            scene.add()
        asked = rng.sample(scene.facts, min(rng.randint(*level.questions), len(scene.facts)))
        pairs = [(self._question([fact.relation], fact.subject, rng), fact.object) for fact in asked]
        if not pairs or rng.random() < self.config.unanswerable * len(pairs):
            pairs.insert(rng.randint(0, len(pairs)), (self._question_without_answer(scene, rng), INSUFFICIENT))
        turns: list[Turn] = []
        for question, answer in pairs:
            turns += [_user(question if turns else f"{_show(scene)}\n\n{question}"), _answer(answer)]
        return Lesson(tuple(turns), with_tools=False)

    def _question_without_answer(self, scene: Scene, rng: random.Random) -> str:
        passage = rng.choice(scene.passages)
        stated = {fact.relation.name for fact in scene.facts if fact.subject == passage.subject}
        missing = [relation for relation in relations_of(self.grammar, passage.kind) if relation.name not in stated]
        if missing:
            return self._question([rng.choice(missing)], passage.subject, rng)
        stranger = self.names.draw_similar(passage.subject, passage.kind, rng)
        return self._question([rng.choice(relations_of(self.grammar, passage.kind))], stranger, rng)

    def _reasoning(self, level: Level, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng)
        scene, subject = self._scene(level, rng), head
        steps: list[str] = []
        for relation in chain:
            if rng.random() < self.config.unanswerable / len(chain):
                scene.hide(relation, subject)
                scene.add_about(subject, self.grammar.kinds[relation.subject_kind])
                found = INSUFFICIENT
            else:
                found = scene.state(relation, subject).object
            steps.append(f"{rng.choice(relation.queries).format(subject=subject)}: {found}\n")
            subject = found
            if found == INSUFFICIENT:
                break
        while len(scene.passages) < rng.randint(*level.passages):
            scene.add()
        rng.shuffle(scene.passages)
        question = _user(f"{_show(scene)}\n\n{self._question(chain, head, rng)}")
        answer: Turn = {"role": "assistant", "content": f"{''.join(steps)}<answer> {subject}</answer>"}
        return Lesson((question, answer), with_tools=False)

    def _searching(self, _: Level, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng)
        return self._tool_lesson([_user(self._question(chain, head, rng)), _call(chain[0], head, rng)], rng)

    def _continuing(self, level: Level, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng, least=2)
        turns, subject = [_user(self._question(chain, head, rng)), _call(chain[0], head, rng)], head
        for found, wanted in itertools.pairwise(chain[: rng.randint(2, len(chain))]):
            scene = self._scene(level, rng)
            subject = scene.state(found, subject).object
            for _ in range(rng.randint(0, RESULTS - 1)):
                scene.add()
            scene.shuffle()
            turns += [_response(scene), _call(wanted, subject, rng)]
        return self._tool_lesson(turns, rng)

    def _demonstration(self, level: Level, rng: random.Random) -> Lesson:
        chain, head = self._chain(rng)
        scene, searched = self._scene(level, rng), chain[0]
        if rng.random() < self.config.wrong_query:
            searched = rng.choice(relations_of(self.grammar, self.grammar.kinds[searched.subject_kind]))
        if rng.random() < self.config.unanswerable:
            scene.hide(searched, head)
            scene.add_about(head, self.grammar.kinds[searched.subject_kind])
            answer = INSUFFICIENT
        else:
            answer = scene.state(searched, head).object
        for _ in range(RESULTS - 1):
            scene.add()
        scene.shuffle()
        if scene.facts and rng.random() < self.config.wrong_answer:
            answer = rng.choice(scene.facts).object
        turns = [_user(self._question(chain, head, rng)), _call(searched, head, rng), _response(scene), _answer(answer)]
        return self._tool_lesson(turns, rng)

    def _tool_lesson(self, turns: Sequence[Turn], rng: random.Random) -> Lesson:
        if rng.random() < self.config.without_system:
            return Lesson(tuple(turns), with_tools=False)
        return Lesson(({"role": "system", "content": self.prompt}, *turns), with_tools=True)

    def _scene(self, level: Level, rng: random.Random) -> Scene:
        return Scene(self.grammar, self.names, level.facts, level.fillers, rng)

    def _chain(self, rng: random.Random, least: int = 1) -> tuple[list[Relation], str]:
        """A chain of at least ``least`` relations, first hop first, and a head entity."""
        hops = max(least, rng.choices(range(1, len(self.config.hops) + 1), self.config.hops)[0])
        chain = [rng.choice(list(self.grammar.relations.values()))]
        while len(chain) < hops:
            chain.append(rng.choice(relations_of(self.grammar, self.grammar.kinds[chain[-1].object_kind])))
        return chain, self.names.draw(self.grammar.kinds[chain[0].subject_kind], rng)

    def _question(self, chain: Sequence[Relation], head: str, rng: random.Random) -> str:
        path = self.grammar.path(tuple(relation.name for relation in chain), head)
        wordings = self.grammar.questions["person" if chain[-1].object_kind == "person" else "other"]
        return rng.choice(wordings).format(path=path)


def _show(scene: Scene) -> str:
    return format_passages([passage.chunk for passage in scene.passages])


def _user(text: str) -> Turn:
    return {"role": "user", "content": text}


def _answer(name: str) -> Turn:
    return {"role": "assistant", "content": f"<answer> {name}</answer>"}


def _response(scene: Scene) -> Turn:
    return {"role": "tool", "content": _show(scene)}


def _call(relation: Relation, subject: str, rng: random.Random) -> Turn:
    name: JsonValue = RETRIEVE_TOOL["function"]["name"]  # type: ignore[index,call-overload]
    arguments = json.dumps({"query": rng.choice(relation.queries).format(subject=subject)})
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
