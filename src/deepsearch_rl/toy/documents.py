"""Generated conversations that the base model learns from, in the exact layout of real rollouts.

They teach the language of both worlds, every relation and every wording of a question, but no
complete task:

- *copy*: a list of names and relation words to repeat; nothing teaches copying sooner;
- *lookup*: facts about similar names, and queries for one after another, each answered by a note;
  it teaches to find a fact by its relation, where models otherwise take any name of the right kind
  (docs/experiments.md, 36);
- *search*: a question and the call that looks up its first fact;
- *continuation*: a question of several hops, some of its searches with their results, and the next
  call, or all of them and the answer; it teaches to follow a plan to its end, to search in other
  words where a result lacks the fact, and to refuse where the second result lacks it too;
- *given search*: a question, a call that the model need not write, all passages that the question
  needs, in any order, and the answer; it teaches what is enough;
- *demonstration*: a question, one call, three passages, an answer. These are rough: a question of
  several hops is answered after one search as if it had one, so the base model ends where a teacher
  would continue.

Before a search the model writes down its plan, the relations that it still has to follow, and after
every result the fact that it read, so that it need not count hops. A served model sees the tool in
its system block. Demonstrations have it, searches without a plan, and a few continuations, which end
in a call or a refusal; that makes the base model answer after one search, and sometimes continue.

Nothing here comes from a generated world: names and facts are random in every document, so a model
learns to read, and nothing about the world that it is tested on.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL_NAME
from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.toy.articles import (
    Articles,
    Fact,
    Turn,
    draw_name,
    draw_similar_name,
    write_statement,
)
from deepsearch_rl.toy.curriculum import CurriculumStage, DocumentConfig
from deepsearch_rl.toy.grammar import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    STYLES,
    Grammar,
    Relation,
    ask,
    write_note,
    write_plan,
    write_query,
)

# Key of a turn that the model reads although the assistant says it: nothing is learnt from its
# tokens
GIVEN = "given"
# Share of a lookup's names that differ from another one of it in one word
_SIMILAR = 0.6


class ChainQuestion(NamedTuple):
    """A question and the relations that lead from ``head`` to its answer."""

    grammar: Grammar
    question: str
    head: str
    chain: list[Relation]


@dataclass(frozen=True, slots=True)
class DocumentGenerator:
    """Writes documents about random facts, each a conversation as the chat template takes it."""

    prompt: str
    config: DocumentConfig

    def documents(self, stage: CurriculumStage, rng: random.Random) -> Iterator[list[Turn]]:
        """Yield documents of a curriculum stage without end."""
        share_of_writer = {
            self._copy: stage.copy_share,
            self._lookup: stage.lookup_share,
            self._search: stage.search_share,
            self._continuation: stage.continuation_share,
            self._given: stage.given_share,
            self._demonstration: stage.demonstration_share,
        }
        writers = list(share_of_writer)
        shares = list(share_of_writer.values())
        while True:
            write = rng.choices(writers, shares)[0]
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

    def _lookup(self, _: CurriculumStage, rng: random.Random) -> list[Turn]:
        grammar = self._grammar(rng)
        # Two relations at least: the subject alone does not say which fact is meant
        kind = rng.choice([kind for kind in grammar.kinds if len(grammar.relations_of(kind)) > 1])
        relations = grammar.relations_of(kind)
        relations = rng.sample(relations, min(len(relations), rng.randint(2, 3)))
        stated: list[Fact] = []
        missing: list[tuple[str, Relation]] = []

        for subject in _draw_similar_names(grammar, kind, rng.randint(2, 4), rng):
            for relation in relations:
                if rng.random() < self.config.unanswerable:
                    missing.append((subject, relation))
                else:
                    name = draw_name(grammar, relation.object_kind, rng)
                    stated.append(Fact(relation, subject, name))

        rng.shuffle(stated)
        text = " ".join(write_statement(fact, fact.relation.noun, rng) for fact in stated)
        asked = [(fact.subject, fact.relation, fact.object) for fact in stated]
        asked += [(*fact, None) for fact in rng.sample(missing, min(len(missing), 1))]
        rng.shuffle(asked)
        turns: list[Turn] = []

        for place, (subject, relation, name) in enumerate(asked):
            query = write_query(subject, relation.noun)
            turns.append(_user(query if place else f"{text}\n{query}"))
            turns.append({"role": "assistant", "content": write_note(relation.noun, name)})

        return turns

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

        # With the tool, a continuation never ends in a fact
        hops = rng.randint(1, len(task.chain) - has_tool)
        for place, relation in enumerate(task.chain[:hops], 1):
            word = None
            missing = False
            if rng.random() < self.config.second_query:
                result, _ = articles.find_facts(subject, [relation], hidden=True)
                turns.append(result)
                notes = [write_note(relation.noun, None), _plan(task.chain[place - 1 :])]
                turns.append(_call("\n".join(notes), subject, relation.second))
                word = relation.second
                missing = rng.random() < self.config.unanswerable

            result, names = articles.find_facts(subject, [relation], hidden=missing, word=word)
            turns.append(result)
            if not names:
                turns.append(_answer(INSUFFICIENT, write_note(relation.noun, None)))
                break

            (subject,) = names
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


def _draw_similar_names(grammar: Grammar, kind: str, count: int, rng: random.Random) -> list[str]:
    """Return different names of a kind; most differ from another one in one word."""
    names = [draw_name(grammar, kind, rng)]
    while len(names) < count:
        name = draw_name(grammar, kind, rng)
        if rng.random() < _SIMILAR:
            name = draw_similar_name(grammar, rng.choice(names), kind, rng)
        if name not in names:
            names.append(name)

    return names


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
