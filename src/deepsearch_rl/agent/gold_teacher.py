"""A teacher that knows the gold evidence of a question, and shows how to find it.

    the question as it stands -> search -> what is still missing, by a name that was read -> search -> ... -> answer

It plans from the question's metadata: gold titles (HotpotQA), gold steps (sub-questions of MuSiQue, triples of
2WikiMultihopQA) or gold facts (MultiHop-RAG). The plan says what is missing, never what to write: queries and answers
consist of words of the question and of the passages that the searches returned; yes, no and a refusal are the
exceptions. So a model that sees nothing but the conversation can imitate it.

It stops when all evidence is shown. A search that missed is asked again in other words. Where nothing is left to ask
it refuses; the filter drops such a rollout unless refusing was right.

A model of 135M parameters does not learn when a second search is needed: taught by a teacher that stops as soon as it
can, it never makes one. So ``min_searches`` lets the teacher look up what the question does not name even where a
passage of it was shown already.
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
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import without_space

# Words of questions that name nothing
_FUNCTION_WORDS = """
a an the what which who whom whose where when how why is are was were be been do does did has have had can could of in
on at by for to from with and or that this it its his her their as not than into between among also both one two first
same name named called known s t located born according article articles report reported
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# What a relation without its last word ends in: "place of" of "place of birth"
_OPEN_ENDS = frozenset(
    {"a", "an", "the", "of", "in", "on", "at", "by", "for", "from", "to", "with"}
)
_REFERENCE = re.compile(r"#(\d+)")
# What tells titles of one name apart: "Lilu (mythology)"
_BRACKET = re.compile(r"\s*\([^()]*\)$")
_CLAUSE_END = re.compile(r"[,;:]|\b(?:and|while|but|as|that|whose|which|who)\b")


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as the model reads it."""

    title: str
    text: str


def read_passages(observation: str) -> list[Passage]:
    """Return the passages of a tool message (:func:`deepsearch_rl.chat.chat_messages.format_passages`)."""
    passages: list[Passage] = []
    _, _, rest = f"\n\n{observation}".partition("\n\n[1] ")
    while rest:
        # A line such as "[7] x" in a text begins none
        passage, _, rest = rest.partition(f"\n\n[{len(passages) + 2}] ")
        title, _, text = passage.partition("\n")
        passages.append(Passage(title, text))

    return passages


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

    def __init__(self, question: Question, min_searches: int, max_searches: int) -> None:
        self._question = question
        self._targets = plan(question)
        self._min_searches = min_searches
        self._max_searches = max_searches

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """Return the next search, or the answer."""
        asked: list[str] = []
        passages: list[Passage] = []
        for message in messages:
            asked += [str((call.parsed or {}).get("query")) for call in message.tool_calls]
            if message.role == "tool":
                passages += read_passages(message.content)

        query, answer = self.turn(asked, passages)
        calls = (search_call(query, len(asked) + 1),) if query else ()
        content = "" if query else f"<answer> {answer}</answer>"
        return Reply(Message(role="assistant", content=content, tool_calls=calls))

    def turn(self, asked: Sequence[str], passages: Sequence[Passage]) -> tuple[str, str]:
        """Return what the teacher asks for, empty where it answers, and its answer so far."""
        missing = [target for target in self._targets if not any(map(target.shown_in, passages))]
        answer = self._shown_answer(passages)
        found = bool(self._targets and not missing and answer)
        if found and len(asked) >= self._min_searches:
            return "", answer

        if len(asked) < self._max_searches:
            targets = missing or self._by_answer(answer, passages)
            before = {"", *map(normalise, asked)}
            for query in self._searches(targets, passages):
                if normalise(query) not in before:
                    return query, ""

        return "", answer if found else INSUFFICIENT

    def _by_answer(self, answer: str, passages: Sequence[Passage]) -> list[Target]:
        """Return the targets that are worth a closer look first: not named by the question, and holding the answer."""

        def rank(target: Target) -> tuple[bool, bool]:
            named = bool(target.title) and names(bare(target.title or ""), self._question.question)
            shown = [item for item in passages if target.shown_in(item)]
            return named, not any(names(answer, item.text) for item in shown)

        return sorted(self._targets, key=rank)

    def _searches(self, targets: Sequence[Target], passages: Sequence[Passage]) -> Iterator[str]:
        """Yield queries, the best first: the question, what a target is called, the question's own names."""
        question = self._question.question.strip().rstrip("?").rstrip()
        yield question

        read = [question]
        for passage in passages:
            read += [passage.title, passage.text]

        queries = [self._queries(target, read, passages) for target in targets]
        # Facts do not depend on each other: each is asked for once before one is asked for again
        independent = any(target.fact for target in targets)
        yield from _in_turn(queries) if independent else chain.from_iterable(queries)

        yield " ".join(capitalised(question) or content_words(question))
        # More of what was found may name what is missing
        for target in self._targets:
            name = bare(target.title or "")
            if target not in targets and _any_names(name, read):
                yield name
        if targets:
            yield from clauses(question)

    def _queries(
        self, target: Target, read: Sequence[str], passages: Sequence[Passage]
    ) -> Iterator[str]:
        """Yield the queries of a target, of words that were read."""
        if target.fact:
            yield from self._fact_queries(target, passages)
            return

        if target.step:
            yield from self._step_queries(target.step, read, passages)

        name = bare(target.title or "")
        if _any_names(name, read):
            yield from self._name_queries(name)
        # Of "Carroll County, New Hampshire"
        short = name.partition(",")[0]
        if _any_names(short, read):
            yield short

    def _name_queries(self, name: str) -> Iterator[str]:
        yield name
        yield " ".join([name, *content_words(self._question.question, without=name)])

    def _step_queries(
        self, step: GoldStep, read: Sequence[str], passages: Sequence[Passage]
    ) -> Iterator[str]:
        """Yield what a step asks, without words that were not read, and what it asks about."""
        resolved = self._resolve(step.question, passages)
        if not resolved:
            return

        subject, asked = resolved
        known = set(_words(" ".join(read)))
        words = [word for word in asked.split() if known.issuperset(_words(word))]
        while words and words[-1].casefold() in _OPEN_ENDS:
            words.pop()
        yield " ".join(words)
        if _any_names(subject, read):
            yield from self._name_queries(subject)

    def _fact_queries(self, target: Target, passages: Sequence[Passage]) -> Iterator[str]:
        """Yield the words that the question shares with a fact, these with names that were read, and clauses."""
        question = self._question.question
        source = target.source if names(target.source, question) else ""
        evidence = f"{target.title}\n{target.fact}"
        shared = shared_words(question, evidence, without=source)
        yield " ".join([source, *shared]).strip()

        read = " ".join(f"{item.title}\n{item.text}" for item in passages)
        others = shared_words(" ".join(capitalised(read)), evidence, without=question)
        yield " ".join([source, *shared, *others]).strip()
        yield from clauses(question, evidence)

    def _resolve(self, question: str, passages: Sequence[Passage]) -> tuple[str, str] | None:
        """Return what a step asks about, and its question in words; None if it needs an answer that is not shown."""
        subject, relation, _ = question.partition(" >> ")
        if not relation:
            subject = ""
        for number in _REFERENCE.findall(question):
            place = int(number) - 1
            step = self._targets[place].step if place < len(self._targets) else None
            answer = (step.answer if step else None) or ""
            if not any(names(answer, f"{item.title}\n{item.text}") for item in passages):
                return None
            question = question.replace(f"#{number}", answer)
            subject = answer

        return subject, question.replace(" >> ", " ").rstrip("?")

    def _shown_answer(self, passages: Sequence[Passage]) -> str:
        """Return the golden answer that the passages or the question show; empty where none does."""
        texts = [self._question.question, *(f"{item.title}\n{item.text}" for item in passages)]
        for answer in self._question.golden_answers:
            if normalise(answer) in CLOSED_ANSWERS or any(names(answer, text) for text in texts):
                return answer
        return ""


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


def shared_words(text: str, other: str, without: str) -> list[str]:
    """Return the words of a text that name something and stand in the other text too, each once, as spelled."""
    wanted = set(content_words(other, without=without))
    shared: dict[str, str] = {}
    for word in re.findall(r"\w+", text):
        if word.casefold() in wanted:
            shared.setdefault(word.casefold(), word)
    return list(shared.values())


def _in_turn(queries: Sequence[Iterator[str]]) -> Iterator[str]:
    for round_ in zip_longest(*queries, fillvalue=""):
        yield from round_


def _any_names(name: str, texts: Sequence[str]) -> bool:
    return any(names(name, text) for text in texts)
