"""How much of a question's gold evidence a model was shown, read from the passages in its conversation."""

import re
from collections.abc import Iterable
from statistics import fmean

from deepsearch_rl.records import Trajectory
from deepsearch_rl.retrieval.gold import Gold, without_space

_TITLED = r'^(?:\[\d+\] |(?:<information>)?Doc \d+\(Title: )"?{}"?(?:$|\) )'
"""A passage's first line by its title: as retrieval/passages.py writes it, or as the tag protocol does."""


def evidence_shown(one: Trajectory, gold: Gold) -> float | None:
    """Share of the gold evidence that the model was shown; None where it names documents by id, as no passage does."""
    match gold.kind:
        case "facts":
            return fmean(shown_facts(one, gold.items))
        case "titles":
            return fmean(shown_titles(one, gold.items))
        case "documents":
            return None


def shown_facts(trajectory: Trajectory, facts: Iterable[str]) -> list[bool]:
    """For each fact whether it stood, white space apart, in a passage that the model was shown."""
    shown = [without_space(message.content) for message in trajectory.messages if message.role == "tool"]
    return [any(wanted in text for text in shown) for wanted in map(without_space, facts)]


def shown_titles(one: Trajectory, titles: Iterable[str]) -> list[bool]:
    """For each title whether the model was shown a passage that has it, with or without wiki-18's quotes around it."""
    shown = "\n".join(message.content for message in one.messages if message.role == "tool")
    return [re.search(_TITLED.format(re.escape(title)), shown, re.MULTILINE) is not None for title in titles]
