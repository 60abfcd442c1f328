"""A teacher that knows the gold evidence of a question, and shows how to find it.

    question as it stands -> search -> what is still missing, by a name that a passage shows -> ... -> answer

It plans from the evidence in the question's metadata: gold titles (HotpotQA), sub-questions and their answers
(MuSiQue), triples (2WikiMultihopQA), facts (MultiHop-RAG). A plan says what to look for, never what to write: a query
consists of words of the question and of the passages that the searches returned, and so does every note and every
answer but yes, no and a refusal. So its demonstrations can be imitated by a model that sees the conversation alone.

It stops as soon as all evidence is shown. A search that missed is asked again in other words; where nothing is left to
ask, or the answer is in no passage, it refuses. The filter drops such a rollout unless refusing was right.

Before a search it copies the sentence that names what it asks for next, and before an answer the sentence that holds
it. A model of 135M parameters learns the second hop from these sentences (docs/experiments.md).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepsearch_rl.agent.protocols import Reply, RolloutPolicy
from deepsearch_rl.chat.chat_messages import search_call
from deepsearch_rl.core.answers import CLOSED_ANSWERS, INSUFFICIENT, normalise
from deepsearch_rl.core.records import Message, Question
from deepsearch_rl.data.sentences import sentence_spans
from deepsearch_rl.data.titles import title_key

# A note is cut to this many words around what it names
NOTE_WORDS = 40
_PASSAGE = re.compile(r"^\[\d+\] (?P<title>.*)\n(?P<text>(?:.*\n?)*?)(?=\n\[\d+\] |\Z)", re.MULTILINE)
# What distinguishes titles of one name: "Lilu (mythology)"
_BRACKET = re.compile(r"\s*\([^()]*\)$")


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as the model reads it."""

    title: str
    text: str

    @property
    def sentences(self) -> Iterator[str]:
        """The sentences of the text."""
        for start, end in sentence_spans(self.text):
            yield self.text[start:end].strip()


class GoldTeacher(RolloutPolicy):
    """The teacher for one rollout; it reads all that it needs from the conversation."""

    def __init__(self, question: Question, max_searches: int) -> None:
        self._question = question
        self._titles = dict.fromkeys(question.metadata.supporting_titles or ())
        self._max_searches = max_searches

    async def reply(self, messages: Sequence[Message], max_tokens: int) -> Reply:  # noqa: ARG002 - it writes little
        """Return the next search, or the answer."""
        asked: list[str] = []
        for message in messages:
            asked += [str((call.parsed or {}).get("query")) for call in message.tool_calls]

        passages = [
            passage for message in messages if message.role == "tool" for passage in read_passages(message.content)
        ]
        content, query = self.turn(asked, passages)
        calls = (search_call(query, len(asked) + 1),) if query else ()
        return Reply(Message(role="assistant", content=content, tool_calls=calls))

    def turn(self, asked: Sequence[str], passages: Sequence[Passage]) -> tuple[str, str | None]:
        """Return what the teacher writes and the query that it asks, None where it answers."""
        if not asked:
            return "", self._question.question.strip().rstrip("?").rstrip()

        shown = {title_key(passage.title) for passage in passages}
        missing = [title for title in self._titles if title_key(title) not in shown]
        answer = self._shown_answer(passages)

        if not missing and answer:
            note = self._answer_note(answer, passages)
            return f"{note}\n<answer> {answer}</answer>".lstrip(), None

        if len(asked) < self._max_searches:
            for title in missing or self._titles:
                for query in self._queries(title, passages):
                    if query not in asked:
                        return note_on(bare(title), passages), query

        return f"<answer> {INSUFFICIENT}</answer>", None

    def _queries(self, title: str, passages: Sequence[Passage]) -> Iterator[str]:
        """Yield queries for a gold passage: its name if it was read, then with what the question asks about it."""
        name = bare(title)
        texts = [self._question.question]
        for passage in passages:
            texts += [passage.title, passage.text]
        if not any(names(name, text) for text in texts):
            return

        yield name
        known = set(normalise(name).split()) | FUNCTION_WORDS
        rest = [word for word in normalise(self._question.question).split() if word not in known]
        yield " ".join([name, *rest])

    def _shown_answer(self, passages: Sequence[Passage]) -> str:
        """Return the golden answer that the passages or the question show; empty where none does."""
        for answer in self._question.golden_answers:
            if normalise(answer) in CLOSED_ANSWERS:
                return answer
            texts = [f"{passage.title}\n{passage.text}" for passage in passages]
            if any(names(answer, text) for text in [*texts, self._question.question]):
                return answer
        return ""

    def _answer_note(self, answer: str, passages: Sequence[Passage]) -> str:
        gold = {title_key(title) for title in self._titles}
        return note_on(answer, [passage for passage in passages if title_key(passage.title) in gold])


# Words of questions that name nothing
FUNCTION_WORDS = frozenset(
    "what which who whom whose where when how is are was were did does do a an the of in on at by for to from with "
    "and or that this it its his her their as be been has have had not name born known located also one two first "
    "same between among than into".split()
)


def read_passages(observation: str) -> list[Passage]:
    """Return the passages of a tool message (:func:`deepsearch_rl.chat.chat_messages.format_passages`)."""
    return [Passage(match["title"], match["text"].strip()) for match in _PASSAGE.finditer(observation)]


def bare(title: str) -> str:
    """Return a title without the words in brackets that tell it from others of its name."""
    return _BRACKET.sub("", title) or title


def names(name: str, text: str) -> bool:
    """Return whether a text holds a name as whole words, in any case and punctuation."""
    return f" {_words(name)} " in f" {_words(text)} "


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def note_on(name: str, passages: Sequence[Passage]) -> str:
    """Return the first sentence that holds a name, at most NOTE_WORDS words around it; empty where none does."""
    for passage in passages:
        for sentence in passage.sentences:
            if names(name, sentence):
                return _cut(sentence, name)
    return ""


def _cut(sentence: str, name: str) -> str:
    words = sentence.split()
    if len(words) <= NOTE_WORDS:
        return sentence
    size = len(name.split())
    for place in range(len(words) - size + 1):
        if names(name, " ".join(words[place : place + size])):
            start = max(0, min(place - NOTE_WORDS // 2, len(words) - NOTE_WORDS))
            return " ".join(words[start : start + NOTE_WORDS])
    return " ".join(words[:NOTE_WORDS])
