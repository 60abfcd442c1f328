"""Generated conversations that the base model learns from, in the exact layout of real rollouts.

They teach the language of both worlds, every relation and every wording of a question, and no task
as a whole:

- *copy*: a list of names and relation words to repeat; nothing teaches copying sooner;
- *search*: a question and the call that looks up its first fact;
- *continuation*: a question of several hops, some of its searches with their results, and the next
  call, or all of them and the answer; it teaches to follow a plan to its end, and to search in
  other words where a result lacks the fact;
- *given search*: a question, a call that the model need not write, all passages that the question
  needs, in any order, and the answer; it teaches what is enough;
- *demonstration*: a question, one call, three passages, an answer. These are rough: a question of
  several hops is answered after one search as if it had one, so the base model ends where a teacher
  would continue.

Before a search the model writes down its plan, the relations that it has still to follow, and after
every result the fact that it read. So where a chain ends stands in the text, and need not be
counted. A served model sees the tool in its system block: so begin demonstrations, and searches
that have no plan, and few continuations, which have one and never end in an answer. That makes the
base model answer after one search, and sometimes go on.

Nothing here comes from a generated world. Names are put together anew for every document and facts
are drawn at random, so a model can learn how to read from them, and nothing about the world that it
is tested on. The passages look like the first results of a search: parts of one article, and
articles about subjects with similar names that state the relation that was asked for.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field, JsonValue

from deepsearch_rl.conversation.chat_messages import RETRIEVE_TOOL_NAME
from deepsearch_rl.conversation.passages import format_passages
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.core.records import Record
from deepsearch_rl.corpora.grammar.grammar import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    STATEMENTS,
    STYLES,
    Grammar,
    Relation,
    ask,
    write_note,
    write_plan,
    write_query,
)

Turn = dict[str, JsonValue]
# Key of a turn that the model reads although the assistant says it: nothing is learnt from its
# tokens
GIVEN = "given"

# Passages that a search returns
RESULTS = 3
# Shares of further passages; the rest is about anything
_SAME_SUBJECT = 0.3
_SIMILAR_SUBJECT = 0.5
# Share of those about similar subjects that state the relation that was searched for
_SAME_RELATION = 0.8
# Share of sentences that open one
_NEW_PARAGRAPH = 0.3
# Share of results whose first passage is not the one that was searched for
_SHUFFLED = 0.3


class CurriculumStage(Record):
    """One stage of the curriculum; what the shares leave is demonstrations."""

    tokens: int = Field(ge=0, description="tokens trained on in this stage")
    hops: tuple[float, ...] = Field(description="shares of questions with 1, 2, ... hops")
    results: int = Field(
        ge=1, description="passages of a result; a given search has as many as it needs, at least"
    )
    facts: tuple[int, int] = Field(description="fewest and most facts of a passage")
    fillers: tuple[int, int] = Field(
        description="fewest and most sentences without a fact of a passage"
    )
    copy_share: float = Field(ge=0, le=1, description="share of the documents that repeat names")
    search_share: float = Field(
        ge=0, le=1, description="share that writes one search and nothing else"
    )
    continuation_share: float = Field(
        ge=0, le=1, description="share that writes searches after others"
    )
    given_share: float = Field(
        ge=0, le=1, description="share that answers from passages it did not ask for"
    )


class DocumentConfig(Record):
    """What all stages of the curriculum share."""

    in_domain: float = Field(
        ge=0, le=1, description="share of documents in the language of the in-domain world"
    )
    second_words: float = Field(
        ge=0, le=1, description="share of facts stated with the second word of their relation"
    )
    unanswerable: float = Field(
        ge=0, le=1, description="share of questions that no passage answers"
    )
    without_system: float = Field(
        ge=0, le=1, description="share of first calls and given searches without the tool"
    )
    tool_continuations: float = Field(
        ge=0, le=1, description="share of continuations with the tool"
    )
    inferences: float = Field(
        ge=0,
        le=1,
        description="share of questions that name two relations by one word, of those whose language has such words",
    )
    second_query: float = Field(
        ge=0, le=1, description="share of a continuation's searches that need a second one"
    )


class Fact(NamedTuple):
    """``relation`` leads from ``subject`` to ``object``."""

    relation: Relation
    subject: str
    object: str


class FactPassage(NamedTuple):
    """A passage about one subject and the facts that it states."""

    subject: str
    kind: str
    facts: list[Fact]
    contents: str


class ChainQuestion(NamedTuple):
    """A question and the relations that lead from ``head`` to its answer."""

    grammar: Grammar
    question: str
    head: str
    chain: list[Relation]


def draw_name(grammar: Grammar, kind: str, rng: random.Random) -> str:
    """Return a random name of ``kind``."""
    return " ".join(rng.choice(words) for words in grammar.kinds[kind].word_lists)


def draw_similar_name(grammar: Grammar, name: str, kind: str, rng: random.Random) -> str:
    """Return a name of ``kind`` that differs from ``name`` in one word, where ``name`` has several."""
    words = name.split()
    other = draw_name(grammar, kind, rng).split()
    if len(words) == 1:
        return other[0]
    place = rng.randrange(len(words))
    return " ".join([*words[:place], other[place], *words[place + 1 :]])


@dataclass(slots=True)
class Articles:
    """What the searches of one document find; what one passage states of a subject, no other contradicts."""

    grammar: Grammar
    stage: CurriculumStage
    second_words: float
    rng: random.Random
    # Names that no fact leads to, so that a chain never returns to an earlier one
    visited: set[str]
    _objects: dict[tuple[str, Relation], str] = field(default_factory=dict)

    def find_facts(
        self, subject: str, chain: Sequence[Relation], hidden: bool = False, word: str | None = None
    ) -> tuple[Turn, list[str]]:
        """Return a result with the facts of a chain from ``subject``, and the names that they lead to.

        If ``hidden``, the chain has one fact: the result lacks it, and there are no names. ``word``
        is that of the facts' relations in the text; None draws it.
        """
        rng = self.rng
        stated: set[tuple[str, Relation]] = set()
        names: list[str] = []
        steps: list[tuple[str, Relation]] = []
        passages: list[FactPassage] = []

        for relation in chain:
            steps.append((subject, relation))
            # Also where it is hidden: then no passage states it
            stated.add((subject, relation))
            relations = [] if hidden else [relation]
            passage = self._passage(subject, relation.subject_kind, relations, stated, word)
            passages.append(passage)

            if not hidden:
                subject = passages[-1].facts[0].object
                names.append(subject)
                self.visited.add(subject)

        while len(passages) < self.stage.results:
            # In this order: models are made from these draws
            draw = rng.random()
            name, relation = rng.choice(steps)
            also: list[Relation] = []
            kind = relation.subject_kind

            if draw >= _SAME_SUBJECT + _SIMILAR_SUBJECT:
                kind = rng.choice(list(self.grammar.kinds))
                name = draw_name(self.grammar, kind, rng)
            elif draw >= _SAME_SUBJECT:
                name = draw_similar_name(self.grammar, name, kind, rng)
                if rng.random() < _SAME_RELATION and (name, relation) not in stated:
                    also.append(relation)

            passages.append(self._passage(name, kind, also, stated))

        if len(chain) > 1 or rng.random() < _SHUFFLED:
            rng.shuffle(passages)
        return {"role": "tool", "content": format_passages(passages)}, names

    def _passage(
        self,
        subject: str,
        kind: str,
        relations: Sequence[Relation],
        stated: set[tuple[str, Relation]],
        word: str | None = None,
    ) -> FactPassage:
        """Return a passage that states ``relations`` first, and others at random that the result has not ``stated``."""
        others: list[Relation] = []
        for other in self.grammar.relations_of(kind):
            if (subject, other) not in stated and other not in relations:
                others.append(other)

        count = max(0, self.rng.randint(*self.stage.facts) - len(relations))
        chosen = [*relations, *self.rng.sample(others, min(count, len(others)))]
        stated.update((subject, relation) for relation in chosen)
        facts = [Fact(relation, subject, self._object(subject, relation)) for relation in chosen]
        return FactPassage(subject, kind, facts, f"{subject}\n{self._write(facts, word)}")

    def _object(self, subject: str, relation: Relation) -> str:
        while (subject, relation) not in self._objects:
            name = draw_name(self.grammar, relation.object_kind, self.rng)
            if name != subject and name not in self.visited:
                self._objects[subject, relation] = name

        return self._objects[subject, relation]

    def _write(self, facts: Sequence[Fact], word: str | None) -> str:
        rng = self.rng
        sentences: list[str] = []

        for relation, subject, object_ in facts:
            # Drawn also where a word is given, so that the next draws are the same
            random_word = relation.second if rng.random() < self.second_words else relation.noun
            noun = word or random_word
            # It is that of the first fact alone
            word = None
            statement = rng.choice(STATEMENTS)
            sentences.append(statement.format(noun=noun, subject=subject, object=object_))

        # A passage without a fact has a sentence at least
        fillers = max(rng.randint(*self.stage.fillers), 0 if facts else 1)
        sentences += rng.sample(self.grammar.fillers, fillers)
        rng.shuffle(sentences)

        text = ""
        for sentence in sentences:
            text += sentence + ("\n" if rng.random() < _NEW_PARAGRAPH else " ")

        return text.strip()


@dataclass(frozen=True, slots=True)
class DocumentGenerator:
    """Writes documents about random facts, each a conversation as the chat template takes it."""

    prompt: str
    config: DocumentConfig

    def documents(self, stage: CurriculumStage, rng: random.Random) -> Iterator[list[Turn]]:
        """Yield documents of a curriculum stage without end."""
        writers = (self._copy, self._search, self._continuation, self._given, self._demonstration)
        shares = [stage.copy_share, stage.search_share, stage.continuation_share, stage.given_share]
        while True:
            write = rng.choices(writers, [*shares, 1 - sum(shares)])[0]
            yield write(stage, rng)

    def _copy(self, _: CurriculumStage, rng: random.Random) -> list[Turn]:
        grammar = self._grammar(rng)
        words: list[str] = []
        for relation in grammar.relations.values():
            words += [relation.noun, relation.second]

        names: list[str] = []
        count = rng.randint(2, 12)
        while len(names) < count:
            if rng.random() < 0.3:
                names.append(rng.choice(words))
            else:
                kind = rng.choice(list(grammar.kinds))
                names.append(draw_name(grammar, kind, rng))

        return [_user(f"Name {', '.join(names)}."), _answer(", ".join(names))]

    def _search(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        task = self._task(stage, rng)
        noun = task.chain[0].noun
        if rng.random() < self.config.without_system:
            return [_user(task.question), _call(_plan(task.chain), task.head, noun)]

        # With the tool it has no plan: to make one is left to the teacher
        return [self._system(), _user(task.question), _call("", task.head, noun)]

    def _continuation(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        task = self._task(stage, rng, min_hops=2)
        articles = self._articles(task, stage, rng)
        subject = task.head
        turns = [_user(task.question), _call(_plan(task.chain), subject, task.chain[0].noun)]
        has_tool = rng.random() < self.config.tool_continuations

        # With the tool, a continuation never ends in an answer
        hops = rng.randint(1, len(task.chain) - has_tool)
        for place, relation in enumerate(task.chain[:hops], 1):
            word = None
            if rng.random() < self.config.second_query:
                result, _ = articles.find_facts(subject, [relation], hidden=True)
                turns.append(result)
                notes = [write_note(relation.noun, None), _plan(task.chain[place - 1 :])]
                turns.append(_call("\n".join(notes), subject, relation.second))
                word = relation.second

            result, (subject,) = articles.find_facts(subject, [relation], word=word)
            turns.append(result)
            note = write_note(relation.noun, subject)
            if place == len(task.chain):
                turns.append(_answer(subject, note))
            else:
                notes = [note, _plan(task.chain[place:])]
                turns.append(_call("\n".join(notes), subject, task.chain[place].noun))

        return [self._system(), *turns] if has_tool else turns

    def _given(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        task = self._task(stage, rng)
        result, names = self._articles(task, stage, rng).find_facts(task.head, task.chain)
        notes: list[str] = []
        for relation, name in zip(task.chain, names, strict=True):
            notes.append(write_note(relation.noun, name))

        call = _call("", task.question, "") | {GIVEN: True}
        turns = [_user(task.question), call, result, _answer(names[-1], *notes)]
        return self._with_system(turns, self.config.without_system, rng)

    def _demonstration(self, stage: CurriculumStage, rng: random.Random) -> list[Turn]:
        task = self._task(stage, rng)
        noun = task.chain[0].noun
        hidden = rng.random() < self.config.unanswerable
        result, names = self._articles(task, stage, rng).find_facts(
            task.head, task.chain[:1], hidden=hidden
        )
        name = names[0] if names else None
        answer = _answer(name or INSUFFICIENT, write_note(noun, name))
        return [self._system(), _user(task.question), _call("", task.head, noun), result, answer]

    def _articles(
        self, task: ChainQuestion, stage: CurriculumStage, rng: random.Random
    ) -> Articles:
        return Articles(task.grammar, stage, self.config.second_words, rng, {task.head})

    def _system(self) -> Turn:
        return {"role": "system", "content": self.prompt}

    def _with_system(self, turns: list[Turn], bare: float, rng: random.Random) -> list[Turn]:
        """Put the system block first, but for a share ``bare``."""
        return turns if rng.random() < bare else [self._system(), *turns]

    def _grammar(self, rng: random.Random) -> Grammar:
        return IN_DOMAIN if rng.random() < self.config.in_domain else OUT_OF_DOMAIN

    def _task(self, stage: CurriculumStage, rng: random.Random, min_hops: int = 1) -> ChainQuestion:
        """Draw a question of at least ``min_hops`` (1 or 2) hops, in any style; some name two hops by one word."""
        grammar = self._grammar(rng)
        hops = max(min_hops, rng.choices(range(1, len(stage.hops) + 1), stage.hops)[0])
        infer = bool(grammar.inferences) and rng.random() < self.config.inferences
        chain = [rng.choice(list(grammar.relations.values()))]
        if infer:
            pair = rng.choice(list(grammar.inferences.values()))
            chain = [grammar.relations[noun] for noun in pair]
        while not infer and len(chain) < hops:
            chain.append(rng.choice(grammar.relations_of(chain[-1].object_kind)))

        head = draw_name(grammar, chain[0].subject_kind, rng)
        style = rng.choice(list(STYLES.values()))
        nouns = grammar.nouns([relation.noun for relation in chain], infer)
        return ChainQuestion(
            grammar, ask(style, rng.choice(style.questions), nouns, head), head, chain
        )


def _user(text: str) -> Turn:
    return {"role": "user", "content": text}


def _plan(chain: Sequence[Relation]) -> str:
    return write_plan([relation.noun for relation in chain])


def _answer(name: str, *notes: str) -> Turn:
    return {"role": "assistant", "content": "\n".join([*notes, f"<answer> {name}</answer>"])}


def _call(note: str, subject: str, word: str) -> Turn:
    arguments = json.dumps({"query": write_query(subject, word) if word else subject})
    call: JsonValue = {"function": {"name": RETRIEVE_TOOL_NAME, "arguments": arguments}}
    return {"role": "assistant", "content": note, "tool_calls": [call]}
