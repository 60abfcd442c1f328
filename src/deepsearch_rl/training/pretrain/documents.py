"""Generated conversations that the base model learns from, in the exact layout of real rollouts.

- *copy*: a list of names to repeat; nothing teaches copying sooner;
- *reading*: passages and questions about them; the answers are names to copy;
- *reasoning*: passages and a question of several hops, answered one fact a line; the skill that the next kinds lack;
- *search*: a question and the call that looks up its first fact;
- *continuation*: a question of several hops, some of its searches with their results, and the next call; it teaches
  to look back at the question after reading, and never how such a search ends;
- *demonstration*: a question, one call, three passages, an answer. These are rough: a question of several hops is
  answered after one search as if it had one, so the base model ends where a teacher would continue.

Nothing here comes from a generated world. Names are put together anew for every document and facts are drawn at
random, so a model can learn how to read from them, and nothing about the world that it is tested on. The passages look
like the first results of a search: two parts of one article, and articles about subjects with similar names.
"""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field, JsonValue

from deepsearch_rl.agent.chat_messages import RETRIEVE_TOOL_NAME
from deepsearch_rl.answers import INSUFFICIENT
from deepsearch_rl.corpora.world.grammar import IN_DOMAIN, OUT_OF_DOMAIN, YEAR, Kind, Relation
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.passages import format_passages

Turn = dict[str, JsonValue]
RESULTS = 3  # passages that a search returns in a demonstration
_SAME_SUBJECT, _SIMILAR_SUBJECT = 0.3, 0.4  # shares of further passages; the rest is about anything
_NEW_PARAGRAPH = 0.3  # share of sentences that open one
_STRANGE_WORDS = [word for kind in OUT_OF_DOMAIN.kinds.values() if kind.name != YEAR for word in kind.word_lists[0]]


class CurriculumStage(Record):
    """One stage of the curriculum; what the shares leave is reading documents."""

    tokens: int = Field(ge=0, description="tokens trained on in this stage")
    passages: tuple[int, int] = Field(description="fewest and most passages of a reading document")
    facts: tuple[int, int] = Field(description="fewest and most facts of a passage")
    fillers: tuple[int, int] = Field(description="fewest and most sentences without a fact of a passage")
    questions: tuple[int, int] = Field(description="fewest and most questions of a reading document")
    copy_share: float = Field(ge=0, le=1, description="share of the documents that repeat names")
    reasoning_share: float = Field(ge=0, le=1, description="share that follows a chain of facts step by step")
    search_share: float = Field(ge=0, le=1, description="share that writes one search and nothing else")
    continuation_share: float = Field(ge=0, le=1, description="share that writes a search after others")
    demonstration_share: float = Field(ge=0, le=1, description="share of demonstrations")


class DocumentConfig(Record):
    """What all stages of the curriculum share."""

    strange_names: float = Field(ge=0, le=1, description="share of names made of words of another world's names")
    unanswerable: float = Field(ge=0, le=1, description="share of questions that no passage answers")
    without_system: float = Field(ge=0, le=1, description="share of tool conversations without the system block")
    wrong_query: float = Field(ge=0, le=1, description="share of demonstrations whose query names another relation")
    wrong_answer: float = Field(ge=0, le=1, description="share of demonstrations whose answer is any name in a passage")
    hops: tuple[float, ...] = Field(description="shares of demonstrations with 1, 2, ... hops")


class Fact(NamedTuple):
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


class FactPassage(NamedTuple):
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: Kind
    facts: list[Fact]
    contents: str


def draw_name(kind: Kind, strange_share: float, rng: random.Random) -> str:
    """Return a random name of ``kind``, or of two words of another language's names in ``strange_share`` of the draws.

    So each word of the vocabulary occurs and is copied. The two are first words of their names alone, so that no such
    name is one of that other world.
    """
    if rng.random() < strange_share:
        return " ".join(rng.sample(_STRANGE_WORDS, 2))
    return " ".join(rng.choice(words) for words in kind.word_lists)


def draw_similar_name(name: str, kind: Kind, strange_share: float, rng: random.Random) -> str:
    """Return a name of ``kind`` that differs from ``name`` in one word, where ``name`` has several."""
    words, other = name.split(), draw_name(kind, strange_share, rng).split()
    if len(words) != len(other) or len(words) == 1:
        return " ".join(other)
    place = rng.randrange(len(words))
    return " ".join([*words[:place], other[place], *words[place + 1 :]])


def relations_of(kind: Kind) -> list[Relation]:
    """Return the relations whose subjects are of ``kind``, in the grammar's order."""
    return [relation for relation in IN_DOMAIN.relations.values() if relation.subject_kind == kind.name]


@dataclass(slots=True)
class PassageSet:
    """The passages of one document, in which no subject states a relation twice.

    ``fact_range`` and ``filler_range`` are the fewest and most facts, and sentences without a fact, of a passage.
    """

    strange_share: float
    fact_range: tuple[int, int]
    filler_range: tuple[int, int]
    rng: random.Random
    passages: list[FactPassage] = field(default_factory=list)
    unstated: dict[str, list[Relation]] = field(default_factory=dict)
    """By subject: the relations that no passage states."""

    @property
    def facts(self) -> list[Fact]:
        """Every fact stated so far."""
        return [fact for passage in self.passages for fact in passage.facts]

    def text(self) -> str:
        """Return the passages as a search shows them."""
        return format_passages(self.passages)

    def state(self, relation: Relation, subject: str, hidden: bool = False) -> str:
        """Add a passage about ``subject`` that states ``relation``, among others, and return the object.

        If ``hidden``, have that relation stated nowhere, and return the answer that there is none.
        """
        kind = IN_DOMAIN.kinds[relation.subject_kind]
        if hidden:
            self.unstated.setdefault(subject, relations_of(kind)).remove(relation)
        self._add_about(subject, kind, () if hidden else [relation])
        return INSUFFICIENT if hidden else self.passages[-1].facts[0].object

    def add(self, count: int = 1) -> None:
        """Add passages, each about the first passage's subject, one of similar name, or any."""
        for _ in range(count):
            draw, first = self.rng.random(), self.passages[0] if self.passages else None
            if first and draw < _SAME_SUBJECT:
                self._add_about(first.subject, first.kind)
            elif first and draw < _SAME_SUBJECT + _SIMILAR_SUBJECT:
                self._add_about(draw_similar_name(first.subject, first.kind, self.strange_share, self.rng), first.kind)
            else:
                kind = self.rng.choice([kind for kind in IN_DOMAIN.kinds.values() if relations_of(kind)])
                self._add_about(draw_name(kind, self.strange_share, self.rng), kind)

    def _add_about(self, subject: str, kind: Kind, relations: Sequence[Relation] = ()) -> None:
        """Add a passage about ``subject`` that states ``relations`` first and others at random."""
        unstated = self.unstated.setdefault(subject, relations_of(kind))
        others = [relation for relation in unstated if relation not in relations]
        count = max(0, self.rng.randint(*self.fact_range) - len(relations))
        stated = [*relations, *self.rng.sample(others, min(count, len(others)))]
        self.unstated[subject] = [relation for relation in unstated if relation not in stated]
        facts = [Fact(relation, subject, self._draw_object(relation)) for relation in stated]
        self.passages.append(FactPassage(subject, kind, facts, f"{subject}\n{self._write(facts, kind)}"))

    def _draw_object(self, relation: Relation) -> str:
        """Draw a name that is no subject of the set, so that a chain of facts never returns to an earlier name."""
        kind = IN_DOMAIN.kinds[relation.object_kind]
        while (name := draw_name(kind, self.strange_share, self.rng)) in self.unstated:
            pass
        return name

    def _write(self, facts: Sequence[Fact], kind: Kind) -> str:
        rng = self.rng
        sentences = [
            rng.choice(fact.relation.statements).format(subject=fact.subject, object=fact.object) for fact in facts
        ]
        fillers = max(rng.randint(*self.filler_range), 0 if facts else 1)
        sentences += rng.sample(kind.fillers, min(fillers, len(kind.fillers)))
        rng.shuffle(sentences)
        return "".join(sentence + ("\n" if rng.random() < _NEW_PARAGRAPH else " ") for sentence in sentences).strip()


@dataclass(frozen=True, slots=True)
class DocumentGenerator:
    """Writes documents about random facts, each a conversation as the chat template takes it."""

    prompt: str
    config: DocumentConfig

    def documents(self, stage: CurriculumStage, rng: random.Random) -> Iterator[list[Turn]]:
        """Yield documents of a curriculum stage without end."""
        writers = (self._demonstration, self._search, self._continuation, self._reasoning, self._copy, self._reading)
        shares = [stage.demonstration_share, stage.search_share, stage.continuation_share]
        shares += [stage.reasoning_share, stage.copy_share]
        while True:
            write = rng.choices(writers, [*shares, 1 - sum(shares)])[0]
            yield write(stage, rng)

    def _copy(self, _: CurriculumStage, rng: random.Random) -> list[Turn]:
        kinds, share = list(IN_DOMAIN.kinds.values()), self.config.strange_names
        names = ", ".join(draw_name(rng.choice(kinds), share, rng) for _ in range(rng.randint(2, 12)))
        return [_user(f"Name {names}."), _answer(names)]

    def _reading(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        passages = self._passages(stage, rng)
        passages.add(rng.randint(*stage.passages))
        facts = rng.sample(passages.facts, min(rng.randint(*stage.questions), len(passages.facts)))
        pairs = [(self._question([fact.relation], fact.subject, rng), fact.object) for fact in facts]
        if not pairs or rng.random() < self.config.unanswerable * len(pairs):
            pairs.insert(rng.randint(0, len(pairs)), (self._question_without_answer(passages, rng), INSUFFICIENT))
        turns: list[Turn] = []
        for question, answer in pairs:
            turns += [_user(question if turns else f"{passages.text()}\n\n{question}"), _answer(answer)]
        return turns

    def _question_without_answer(self, passages: PassageSet, rng: random.Random) -> str:
        passage = rng.choice(passages.passages)
        if unstated := passages.unstated[passage.subject]:
            return self._question([rng.choice(unstated)], passage.subject, rng)
        stranger = draw_similar_name(passage.subject, passage.kind, self.config.strange_names, rng)
        return self._question([rng.choice(relations_of(passage.kind))], stranger, rng)

    def _reasoning(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        chain, head = self._chain(rng)
        passages, subject = self._passages(stage, rng), head
        steps: list[str] = []
        for relation in chain:
            name = passages.state(relation, subject, hidden=rng.random() < self.config.unanswerable / len(chain))
            steps.append(f"{rng.choice(relation.queries).format(subject=subject)}: {name}\n")
            subject = name
            if name == INSUFFICIENT:
                break
        while len(passages.passages) < rng.randint(*stage.passages):
            passages.add()
        rng.shuffle(passages.passages)
        question = _user(f"{passages.text()}\n\n{self._question(chain, head, rng)}")
        return [question, {"role": "assistant", "content": f"{''.join(steps)}<answer> {subject}</answer>"}]

    def _search(self, _: CurriculumStage, rng: random.Random) -> list[Turn]:
        chain, head = self._chain(rng)
        return self._with_system([_user(self._question(chain, head, rng)), _call(chain[0], head, rng)], rng)

    def _continuation(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        chain, head = self._chain(rng, min_hops=2)
        turns, subject = [_user(self._question(chain, head, rng)), _call(chain[0], head, rng)], head
        for relation, following in itertools.pairwise(chain[: rng.randint(2, len(chain))]):
            passages = self._passages(stage, rng)
            subject = passages.state(relation, subject)
            passages.add(rng.randint(0, RESULTS - 1))
            turns += [_result(passages), _call(following, subject, rng)]
        return self._with_system(turns, rng)

    def _demonstration(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        chain, head = self._chain(rng)
        passages, relation = self._passages(stage, rng), chain[0]
        if rng.random() < self.config.wrong_query:
            relation = rng.choice(relations_of(IN_DOMAIN.kinds[relation.subject_kind]))
        answer = passages.state(relation, head, hidden=rng.random() < self.config.unanswerable)
        passages.add(RESULTS - 1)
        result = _result(passages)
        if passages.facts and rng.random() < self.config.wrong_answer:
            answer = rng.choice(passages.facts).object
        question = _user(self._question(chain, head, rng))
        return self._with_system([question, _call(relation, head, rng), result, _answer(answer)], rng)

    def _with_system(self, turns: list[Turn], rng: random.Random) -> list[Turn]:
        bare = rng.random() < self.config.without_system
        return turns if bare else [{"role": "system", "content": self.prompt}, *turns]

    def _passages(self, stage: CurriculumStage, rng: random.Random) -> PassageSet:
        return PassageSet(self.config.strange_names, stage.facts, stage.fillers, rng)

    def _chain(self, rng: random.Random, min_hops: int = 1) -> tuple[list[Relation], str]:
        """Draw a chain of at least ``min_hops`` relations, first hop first, and its head entity."""
        hops = max(min_hops, rng.choices(range(1, len(self.config.hops) + 1), self.config.hops)[0])
        chain = [rng.choice(list(IN_DOMAIN.relations.values()))]
        while len(chain) < hops:
            chain.append(rng.choice(relations_of(IN_DOMAIN.kinds[chain[-1].object_kind])))
        return chain, draw_name(IN_DOMAIN.kinds[chain[0].subject_kind], self.config.strange_names, rng)

    def _question(self, chain: Sequence[Relation], head: str, rng: random.Random) -> str:
        path = IN_DOMAIN.path(tuple(relation.name for relation in chain), head)
        wordings = IN_DOMAIN.questions["person" if chain[-1].object_kind == "person" else "other"]
        return rng.choice(wordings).format(path=path)


def _user(text: str) -> Turn:
    return {"role": "user", "content": text}


def _answer(name: str) -> Turn:
    return {"role": "assistant", "content": f"<answer> {name}</answer>"}


def _result(passages: PassageSet) -> Turn:
    """Return a search's result: the passages, in random order three times of ten."""
    if passages.rng.random() < 0.3:
        passages.rng.shuffle(passages.passages)
    return {"role": "tool", "content": passages.text()}


def _call(relation: Relation, subject: str, rng: random.Random) -> Turn:
    arguments = json.dumps({"query": rng.choice(relation.queries).format(subject=subject)})
    call: JsonValue = {"function": {"name": RETRIEVE_TOOL_NAME, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
