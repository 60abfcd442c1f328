"""Questions chosen by fields of their metadata, such as HotpotQA's hard bridge questions."""

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.records import Question

Scalar = str | int | float | bool
# Field -> the value that it must have, or a list of such values
Where = dict[str, Scalar | tuple[Scalar, ...]]

_LOG = logging.getLogger(__name__)


def select(path: Path, where: Where, questions: Sequence[Question]) -> list[Question]:
    """Return the questions of a file whose metadata has the values of ``where``, and log how many others there are.

    A field that holds a list fits if one of its entries does. Raise ConfigError for a field that no
    question has.
    """
    fields = [_fields(question) for question in questions]
    known = set(itertools.chain.from_iterable(fields))
    for name in where:
        if questions and name not in known:
            raise ConfigError(
                f"{path}: no question has the field {name!r} of `where`; they have {', '.join(sorted(known))}."
            )

    kept: list[Question] = []
    left_out = Counter[str]()
    for question, values in zip(questions, fields, strict=True):
        unlike = [name for name, wanted in where.items() if not _fits(values.get(name), wanted)]
        if unlike:
            left_out[unlike[0]] += 1
        else:
            kept.append(question)

    counts = ", ".join(f"{left_out[name]} by {name}" for name in where)
    _LOG.warning("%s: %d of %d questions, left out %s", path, len(kept), len(questions), counts)
    return kept


def _fields(question: Question) -> Mapping[str, object]:
    metadata = question.metadata
    typed = {"question_type": metadata.question_type} if metadata.question_type else {}
    return (metadata.model_extra or {}) | typed


def _fits(value: object, wanted: Scalar | tuple[Scalar, ...]) -> bool:
    values = value if isinstance(value, list) else [value]
    return any(each in (wanted if isinstance(wanted, tuple) else (wanted,)) for each in values)
