"""A teacher that knows the gold evidence of a question, and shows how to find it.

    the question as it stands -> search -> what is still missing, by a name that was read -> search -> ... -> answer

It plans from the question's metadata: gold titles (HotpotQA), gold steps (sub-questions of MuSiQue, triples of
2WikiMultihopQA) or gold facts (MultiHop-RAG). The plan says what is missing, never what to write: queries, notes and
answers consist of words of the question and of the passages that the searches returned; yes, no and a refusal are the
exceptions. So a model that sees nothing but the conversation can imitate it.

It stops when all evidence is shown. A search that missed is asked again in other words. Where nothing is left to ask
it refuses; the filter drops such a rollout unless refusing was right.

Its notes are sentences of the passages: before a search the one with the name that it asks for, before an answer the
one that holds it. From these a model of 135M parameters learns the second hop (docs/experiments.md).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from deepsearch_rl.agent.protocols import Reply, RolloutPolicy
from deepsearch_rl.chat.chat_messages import search_call
from deepsearch_rl.core.answers import CLOSED_ANSWERS, INSUFFICIENT, is_refusal, normalise
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Evidence, GoldStep, Message, Question
from deepsearch_rl.data.sentences import sentence_spans
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import without_space

# A note of a longer sentence is cut to so many words around what it names
NOTE_WORDS = 40
# Words of questions that name nothing
_FUNCTION_WORDS = """
a an the what which who whom whose where when how why is are was were be been do does did has have had can could of in
on at by for to from with and or that this it its his her their as not than into between among also both one two first
same name named called s t known located born according article articles report reported
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_PASSAGE = re.compile(r"^\[\d+\] (.*)\n((?:.*\n?)*?)(?=\n\[\d+\] |\Z)", re.MULTILINE)
_REFERENCE = re.compile(r"#(\d+)")
# What tells titles of one name apart: "Lilu (mythology)"
_BRACKET = re.compile(r"\s*\([^()]*\)$")
_CLAUSE_END = re.compile(r"[,;:]|\b(?:and|while|but|as|that|whose|which|who)\b")


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as the model reads it."""

    title: str
    text: str

    def sentences(self) -> Iterator[str]:
        """Yield the sentences of the text."""
        for start, end in sentence_spans(self.text):
            yield self.text[start:end]


def read_passages(observation: str) -> list[Passage]:
    """Return the passages of a tool message (:func:`deepsearch_rl.chat.chat_messages.format_passages`)."""
    return [Passage(title, text.strip()) for title, text in _PASSAGE.findall(observation)]


@dataclass(frozen=True, slots=True)
class Target:
    """A piece of evidence: a passage with this title, or with this fact, or the answer of a gold step."""

    title: str | None = None
    fact: str | None = None
    # The newspaper of a fact
    source: str = ""
    step: GoldStep | None = None

    def shown_in(self, passage: Passage) -> bool:
        """Return whether a passage is this evidence."""
        if self.fact:
            return without_space(self.fact) in without_space(passage.text)
        if self.title:
            return title_key(self.title) == title_key(passage.title)
        answer = self.step.answer if self.step else None
        return bool(answer) and names(str(answer), f"{passage.title}\n{passage.text}")


def plan(question: Question) -> tuple[Target, ...]:
    """Return the evidence of a question in the order of its reasoning; empty where the answer is a refusal.

    Raise ConfigError where the question has no gold evidence.
    """
    metadata = question.metadata
    if metadata.evidence_list:
        return tuple(map(_target, metadata.evidence_list))

    if metadata.gold_steps:
        return tuple(Target(title=step.title, step=step) for step in metadata.gold_steps)

    if metadata.supporting_titles:
        return tuple(Target(title=title) for title in dict.fromkeys(metadata.supporting_titles))

    if any(map(is_refusal, question.golden_answers)):
        return ()

    raise ConfigError(
        f"question {question.id} has no gold evidence (evidence_list, gold_steps or supporting_titles in its "
        "metadata), so the gold teacher cannot answer it; leave such questions out, or let synthesize.teacher name "
        "the folder of a model."
    )


def _target(evidence: Evidence) -> Target:
    source = (evidence.model_extra or {}).get("source")
    return Target(evidence.title, evidence.fact, source if isinstance(source, str) else "")


class GoldTeacher(RolloutPolicy):
    """The teacher for one rollout; what it has done so far it reads from the conversation."""

    def __init__(self, question: Question, max_searches: int) -> None:
        self._question = question
        self._targets = plan(question)
        self._max_searches = max_searches

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """Return the next search, or the answer."""
        asked: list[str] = []
        passages: list[Passage] = []
        for message in messages:
            asked += [str((call.parsed or {}).get("query")) for call in message.tool_calls]
            if message.role == "tool":
                passages += read_passages(message.content)

        content, query = self.turn(asked, passages)
        calls = (search_call(query, len(asked) + 1),) if query else ()
        return Reply(Message(role="assistant", content=content, tool_calls=calls))

    def turn(self, asked: Sequence[str], passages: Sequence[Passage]) -> tuple[str, str | None]:
        """Return what the teacher writes and what it asks for; None where it answers."""
        missing = [target for target in self._targets if not any(map(target.shown_in, passages))]
        answer = self._shown_answer(passages)
        if asked and self._targets and not missing and answer:
            return (
                f"{self._answer_note(answer, passages)}\n<answer> {answer}</answer>".strip(),
                None,
            )

        if len(asked) < self._max_searches:
            before = set(map(normalise, asked))
            # Where only the answer is missing, the last piece of evidence holds it
            targets = missing or self._targets[::-1]
            for note, query in self._searches(targets, passages):
                if normalise(query) not in before | {""}:
                    return note, query

        return f"<answer> {INSUFFICIENT}</answer>", None

    def _searches(
        self, targets: Sequence[Target], passages: Sequence[Passage]
    ) -> Iterator[tuple[str, str]]:
        """Yield notes and queries, the best first: the question, what a target is called, the question's own names."""
        question = self._question.question.strip().rstrip("?").rstrip()
        yield "", question

        read = [question]
        for passage in passages:
            read += [passage.title, passage.text]

        queries = [self._queries(target, read, passages) for target in targets]
        # Facts do not depend on each other: each is asked for once before one is asked for again
        facts = any(target.fact for target in targets)
        for name, query in _in_turn(queries) if facts else chain.from_iterable(queries):
            yield note_on(name, passages), query

        yield "", " ".join(capitalised(question) or content_words(question))
        # More of what was found may name what is missing
        for target in self._targets:
            name = bare(target.title or "")
            if target not in targets and any(names(name, text) for text in read):
                yield note_on(name, passages), name
        if targets:
            for clause in clauses(question):
                yield "", clause

    def _queries(
        self, target: Target, read: Sequence[str], passages: Sequence[Passage]
    ) -> Iterator[tuple[str, str]]:
        """Yield the names and queries of a target, of words that were read."""
        question = self._question.question
        if target.fact:
            yield from self._fact_queries(target, passages)
            return

        if target.step:
            yield from self._step_queries(target.step, read, passages)

        name = bare(target.title) if target.title else ""
        if name and any(names(name, text) for text in read):
            yield name, name
            yield name, " ".join([name, *content_words(question, without=name)])
        # Of "Carroll County, New Hampshire"
        short = name.partition(",")[0]
        if short != name and any(names(short, text) for text in read):
            yield short, short

    def _step_queries(
        self, step: GoldStep, read: Sequence[str], passages: Sequence[Passage]
    ) -> Iterator[tuple[str, str]]:
        """Yield what a step asks, what it asks about, and that with the words of the question."""
        resolved = self._resolve(step.question, passages)
        if not resolved:
            return

        subject, asked = resolved
        known = set(_words(" ".join(read)))
        words = [word for word in asked.split() if known.issuperset(_words(word))]
        while words and not content_words(words[-1]):
            words.pop()
        if words:
            yield subject, " ".join(words)
        if subject and any(names(subject, text) for text in read):
            yield subject, subject
            yield (
                subject,
                " ".join([subject, *content_words(self._question.question, without=subject)]),
            )

    def _fact_queries(
        self, target: Target, passages: Sequence[Passage]
    ) -> Iterator[tuple[str, str]]:
        """Yield the words that the question shares with a fact, then with names that were read, then clauses."""
        question = self._question.question
        evidence = f"{target.title}\n{target.fact}"
        words = shared_words(question, evidence)
        if target.source and names(target.source, question):
            words = [target.source, *shared_words(question, evidence, without=target.source)]
        if words:
            yield "", " ".join(words)

        texts = "\n".join(f"{item.title}\n{item.text}" for item in passages)
        read = capitalised(texts)
        others = [
            name
            for name in shared_words(evidence, " ".join(read), without=question)
            if name in read
        ]
        if others:
            yield others[0], " ".join([*words, *others])

        for clause in clauses(question, evidence):
            yield "", clause

    def _resolve(self, question: str, passages: Sequence[Passage]) -> tuple[str, str] | None:
        """Return what a step asks about and its question in words; None if it refers to an answer that is not shown."""
        subject, relation, _ = question.partition(" >> ")
        subject = subject if relation else ""
        for number in _REFERENCE.findall(question):
            place = int(number) - 1
            step = self._targets[place].step if place < len(self._targets) else None
            subject = (step.answer if step else None) or ""
            if not subject or not any(
                names(subject, f"{item.title}\n{item.text}") for item in passages
            ):
                return None
            question = question.replace(f"#{number}", subject)

        return subject, question.replace(" >> ", " ").rstrip("?")

    def _shown_answer(self, passages: Sequence[Passage]) -> str:
        """Return the golden answer that the passages or the question show; empty where none does."""
        texts = [self._question.question, *(f"{item.title}\n{item.text}" for item in passages)]
        for answer in self._question.golden_answers:
            if normalise(answer) in CLOSED_ANSWERS or any(names(answer, text) for text in texts):
                return answer
        return ""

    def _answer_note(self, answer: str, passages: Sequence[Passage]) -> str:
        # A name of the question is in many sentences, and a yes in none
        if normalise(answer) in CLOSED_ANSWERS or names(answer, self._question.question):
            return ""
        gold = [item for item in passages if any(target.shown_in(item) for target in self._targets)]
        return note_on(answer, gold) or note_on(answer, passages)


def bare(title: str) -> str:
    """Return a title without the words in brackets that tell it from others of its name."""
    return _BRACKET.sub("", title) or title


def names(name: str, text: str) -> bool:
    """Return whether a text holds a name as whole words, in any case and punctuation."""
    words = _words(name)
    return bool(words) and f" {' '.join(words)} " in f" {' '.join(_words(text))} "


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def content_words(text: str, without: str = "") -> list[str]:
    """Return the words that name something, in lower case, but for those of ``without``."""
    left_out = FUNCTION_WORDS | set(_words(without))
    return [word for word in _words(text) if word not in left_out]


def shared_words(text: str, other: str, without: str = "") -> list[str]:
    """Return the words of a text that name something and that the other text has, as they are spelled, each once."""
    wanted = set(content_words(other, without=without))
    shared: dict[str, str] = {}
    for word in re.findall(r"\w+", text):
        if word.casefold() in wanted:
            shared.setdefault(word.casefold(), word)
    return list(shared.values())


def _in_turn(queries: Sequence[Iterator[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    for round_ in zip_longest(*queries):
        yield from filter(None, round_)


def capitalised(question: str) -> list[str]:
    """Return the words of a question that begin with a capital or a digit, but for its first."""
    words = re.findall(r"[\w'.-]+", question)
    return [word for word in words[1:] if word[0].isupper() or word[0].isdigit()]


def clauses(question: str, evidence: str | None = None) -> list[str]:
    """Return the clauses of a question by how many words they share with the evidence, the most first.

    Clauses that share none are left out. Without evidence all words that name something count.
    """
    wanted = set(content_words(question if evidence is None else evidence))
    shared: dict[str, int] = {}
    for part in _CLAUSE_END.split(question.rstrip("?")):
        clause = " ".join(part.split())
        count = len(wanted & set(content_words(clause)))
        if count:
            shared[clause] = count
    return sorted(shared, key=lambda clause: -shared[clause])


def note_on(name: str, passages: Sequence[Passage]) -> str:
    """Return the first sentence that holds a name, at most NOTE_WORDS words of it; empty where none does."""
    for passage in passages if name else ():
        for sentence in passage.sentences():
            if names(name, sentence):
                return _cut(sentence, name)
    return ""


def _cut(sentence: str, name: str) -> str:
    """Return a sentence, or NOTE_WORDS words of it around a name."""
    words = sentence.split()
    size = len(name.split())
    for place in range(len(words)):
        if names(name, " ".join(words[place : place + size])):
            start = max(0, min(place - NOTE_WORDS // 2, len(words) - NOTE_WORDS))
            return " ".join(words[start : start + NOTE_WORDS])
    return " ".join(words[:NOTE_WORDS])
