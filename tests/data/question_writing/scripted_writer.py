"""A writer that makes good questions and known shares of every bad kind, behind a chat endpoint.

It reads the passages of a prompt as a model would. A good question leaves a name out of a sentence;
one of a pair or a chain says where to look with sentences of the other passages. It answers what it
wrote: right where all needed sentences are shown, unless the planted fault says otherwise.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from deepsearch_rl.core.answers import INSUFFICIENT
from deepsearch_rl.data.question_writing.links import terms_of
from tests.evaluate.chat import says

FAULTS = (
    "evidence_missing",
    "not_verbatim",
    "answer_not_in_evidence",
    "too_long",
    "near_duplicate",
    "not_findable",
    "known_without_passages",
    "one_passage_is_enough",
    "not_answered",
    "answerable",
)
PLANTED = {
    "untitled": ("not_findable",),
    "single": (
        "not_verbatim",
        "answer_not_in_evidence",
        "too_long",
        "near_duplicate",
        "known_without_passages",
        "not_answered",
    ),
    "pair": (
        "answerable",
        "answerable",
        "evidence_missing",
        "one_passage_is_enough",
        "near_duplicate",
        "too_long",
    ),
    "chain": (
        "evidence_missing",
        "one_passage_is_enough",
        "not_verbatim",
        "answer_not_in_evidence",
        "known_without_passages",
        "not_answered",
    ),
}
"""Faults by the passages that they can be planted about, so that every kind is about as frequent.

A title finds its passage, and a linking term both of its own.
"""
_PASSAGE = re.compile(r"^\[(\d+)\] ", re.MULTILINE)
_NAME = re.compile(r"\b[A-Z][\w'-]+(?: [A-Z][\w'-]+)*")


@dataclass
class Planted:
    """A question that was written: its fault, its answer, and the sentences that an answer needs."""

    fault: str
    answer: str
    needed: tuple[str, ...]


@dataclass
class ScriptedWriter:
    """``share`` of the questions have a fault; ``planted`` holds all of them by their text."""

    share: float
    planted: dict[str, Planted] = field(default_factory=dict)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the writing or of the audit."""
        prompt = body["messages"][0]["content"]
        if prompt.startswith("Write questions"):
            return says(self._write(prompt))
        question = prompt.partition("Question: ")[2].partition("\n\nAnswer ")[0]
        return says(self._answer(question, prompt))

    def _answer(self, question: str, prompt: str) -> str:
        planted = self.planted[question]
        if "from memory" in prompt:
            return planted.answer if planted.fault == "known_without_passages" else INSUFFICIENT
        if planted.fault == "not_answered":
            return INSUFFICIENT
        if planted.fault == "answerable":
            return "Port Vale"
        passages = prompt.partition("Question: ")[0]
        shown = [sentence in passages for sentence in planted.needed]
        is_known = any(shown) if planted.fault == "one_passage_is_enough" else all(shown)
        return planted.answer if is_known and planted.needed else INSUFFICIENT

    def _write(self, prompt: str) -> str:
        listed = prompt.partition("stands alone")[2].partition("Reply with JSON")[0]
        texts = _PASSAGE.split(listed)[2::2]
        passages = [
            [line for line in text.strip().splitlines()[1:] if line] or [text.strip()]
            for text in texts
        ]
        sentences = [
            [each for line in lines for each in re.split(r"(?<=[.!?]) ", line) if each]
            for lines in passages
        ]
        draw = int(hashlib.sha256(prompt.encode()).hexdigest(), 16)
        kind = ("single", "pair", "chain")[len(texts) - 1]
        if kind == "single" and texts[0].startswith("\n"):
            kind = "untitled"
        faults = PLANTED[kind]
        fault = faults[draw // 1000 % len(faults)] if draw % 1000 < self.share * 1000 else ""
        rows = self._questions(sentences, fault, draw)
        return f"Here it is:\n{json.dumps({'questions': rows})}"

    def _questions(self, sentences: list[list[str]], fault: str, draw: int) -> list[dict[str, Any]]:
        is_single = len(sentences) == 1
        chosen = self._linking(sentences, draw)
        name = _asked_name(chosen)
        if name is None:
            return []
        blank = chosen[-1].replace(name, "____")
        question = f"{' '.join(chosen[:-1])} Who or what is ____ here: {blank}".strip()
        answer = name
        evidence = [{"passage": n, "sentence": text} for n, text in enumerate(chosen, 1)]
        kind = "single" if is_single else "bridge"

        match fault:
            case "evidence_missing":
                evidence = evidence[1:]
            case "not_verbatim":
                evidence[0]["sentence"] = f"{chosen[0].rstrip('.')} indeed."
            case "answer_not_in_evidence":
                answer = "Nobody Anywhere"
            case "too_long":
                answer = " ".join([name, *chosen[-1].split(), *chosen[0].split(), "and so on"] * 2)
            case "not_findable":
                question = f"Whose was it, number {draw % 10**9}?"
            case "answerable":
                kind = "unanswerable"
            case _:
                pass

        row = {"type": kind, "question": question, "answer": answer, "evidence": evidence}
        if fault != "near_duplicate":
            self.planted[question] = Planted(fault, answer, tuple(chosen))
            return [row]

        copy = f"{question} Please?"
        self.planted[question] = Planted("", answer, tuple(chosen))
        self.planted[copy] = Planted(fault, answer, tuple(chosen))
        return [row, row | {"question": copy}]

    def _linking(self, sentences: list[list[str]], draw: int) -> list[str]:
        """Return a sentence of each passage, those that share a name with the next passage where there are any."""
        chosen: list[str] = []
        for place, of_passage in enumerate(sentences):
            following = sentences[place + 1] if place + 1 < len(sentences) else []
            terms = terms_of(" ".join(following))
            linking = [each for each in of_passage if terms_of(f"x {each}") & terms]
            if place + 1 == len(sentences):
                linking = [each for each in of_passage if _asked_name([*chosen, each])]
            options = linking or of_passage
            chosen.append(options[draw % len(options)])

        return chosen


class ScriptedModel(ScriptedWriter):
    """The scripted writer, who also answers as a search agent: it searches the question, and reads what is shown.

    To an instruction of IFEval it says two words.
    """

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        if messages[0]["role"] != "system":
            prompt = messages[0]["content"]
            is_instruction = not prompt.startswith("Write questions") and "Question: " not in prompt
            return says("An answer.") if is_instruction else super().reply(body)

        question = messages[1]["content"]
        if "tools" in body and messages[-1]["role"] == "user":
            function = {"name": "retrieve", "arguments": json.dumps({"query": question})}
            call = {"id": "call", "type": "function", "function": function}
            return {"content": None, "tool_calls": [call]}

        planted = self.planted[question]
        shown = "".join(each["content"] for each in messages[2:] if each["role"] == "tool")
        is_known = all(sentence in shown for sentence in planted.needed)
        return says(f"<answer> {planted.answer if is_known else INSUFFICIENT}</answer>")


def _asked_name(chosen: list[str]) -> str | None:
    """Return a name of the last sentence that no other sentence has."""
    others = " ".join(chosen[:-1])
    for match in reversed(list(_NAME.finditer(chosen[-1]))):
        if match[0] not in others and match.start() > 0:
            return match[0]
    return None
