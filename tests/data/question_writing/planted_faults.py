"""The generated world's passages as files in a folder, and what the audit finds of the faults planted about them."""

from dataclasses import dataclass
from pathlib import Path

from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.data.question_writing.make import Rejected
from deepsearch_rl.toy.world_questions import WorldConfig, generate
from tests.data.question_writing.scripted_writer import FAULTS, Planted

RECALL = 0.95
KEPT = 0.9


def write_world(profile: Profile, folder: Path) -> None:
    """Write the in-domain documents of a profile's world as text and Markdown files; a text file has no title."""
    world = WorldConfig.model_validate(profile.value("download.world"))
    for number, document in enumerate(generate(world, 0).corpora["world"]):
        if number % 4:
            path = folder / f"{number:04}.md"
            path.write_text(f"# {document.title}\n\n{document.text}\n")
        else:
            path = folder / f"{number:04}.txt"
            path.write_text(f"{document.text}\n")


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Questions with one planted fault: how many the audit judged and rejected, and for which reason.

    ``others`` counts what was rejected for this reason with another fault, or with none.
    """

    planted: int
    rejected: int
    named: int
    others: int

    @property
    def recall(self) -> float:
        """The share of the planted ones that was rejected."""
        return self.rejected / self.planted

    @property
    def precision(self) -> float:
        """The share of what was rejected for this reason that was planted with it."""
        return self.named / max(1, self.named + self.others)


@dataclass(frozen=True, slots=True)
class AuditFigures:
    """What the audit made of planted and of good questions."""

    kinds: dict[str, KindFigures]
    good: int
    good_kept: int

    def lines(self) -> list[str]:
        """Return a table for people to read."""
        lines = [f"{'planted':24} questions rejected for it others recall precision"]
        for name, each in self.kinds.items():
            counts = f"{each.planted:9} {each.rejected:8} {each.named:6} {each.others:6}"
            lines.append(f"{name:24} {counts} {each.recall:6.3f} {each.precision:9.3f}")

        lines.append(f"{'none':24} {self.good:9} {self.good - self.good_kept:8}")
        return lines


def audit_figures(planted: dict[str, Planted], made: Path) -> AuditFigures:
    """Return the figures of what `make_questions` wrote to ``made``; questions that it did not reach do not count."""
    kept: set[str] = set()
    for path in (made / "questions").glob("*.jsonl"):
        kept |= {each.question for each in read_jsonl(path, Question)}
    reasons = {each.question: each.reason for each in read_jsonl(made / "rejected.jsonl", Rejected)}

    fault_of: dict[str, str] = {}
    for text, each in planted.items():
        if text in kept or text in reasons:
            fault_of[text] = each.fault

    kinds: dict[str, KindFigures] = {}
    for fault in FAULTS:
        texts = [text for text in fault_of if fault_of[text] == fault]
        of_reason = [text for text, reason in reasons.items() if reason == fault]
        named = [text for text in of_reason if fault_of[text] == fault]
        kinds[fault] = KindFigures(
            planted=len(texts),
            rejected=sum(text in reasons for text in texts),
            named=len(named),
            others=len(of_reason) - len(named),
        )

    good = [text for text in fault_of if not fault_of[text]]
    return AuditFigures(kinds, len(good), sum(text in kept for text in good))


def require_found(figures: AuditFigures, least: int) -> None:
    """Require that every kind was planted ``least`` times and is found, that good questions are kept, and print it."""
    print("\n".join(figures.lines()))
    for fault, each in figures.kinds.items():
        assert each.planted >= least, fault
        assert each.recall >= RECALL, fault

    assert figures.good_kept >= KEPT * figures.good
