"""Gold documents that a corpus does not have: every score that they count in is lower than the retriever deserves."""

import logging
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher

from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.data.titles import title_key
from deepsearch_rl.search.gold import Gold, chunk_title_key

# A warning stays readable; the number of the others is given.
LISTED = 20

# The least likeness of a name that may be another spelling: difflib's measure, 0 to 1, and the
# cutoff of its own get_close_matches.
NEAREST_RATIO = 0.6
_LOG = logging.getLogger(__name__)


class MissingDocument(Record):
    """A gold document that no chunk belongs to."""

    name: str
    # The most similar title or id of the corpus, where there is one
    nearest: str | None = None

    def __str__(self) -> str:
        return f"{self.name!r} (nearest: {self.nearest!r})" if self.nearest else repr(self.name)


class MissingGold(Record):
    """The gold documents of some questions that a corpus does not have."""

    documents: int
    missing: int
    # The first of the missing ones
    listed: tuple[MissingDocument, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.listed))
        unlisted = self.missing - len(self.listed)
        rest = f" and {unlisted} more" if unlisted else ""
        return (
            f"{self.missing} of {self.documents} gold documents are not in the corpus: "
            f"{names}{rest}"
        )


def find_missing(chunks: Sequence[Chunk], golds: Iterable[Gold]) -> MissingGold:
    """Return which gold titles and documents no chunk has; facts are not looked for.

    The chunks are read once where nothing is missing, twice otherwise, and not at all without
    titles and documents.
    """
    titles: dict[str, str] = {}
    ids: dict[str, str] = {}

    for gold in golds:
        if gold.kind == "titles":
            for title in gold.items:
                titles[title_key(title)] = title
        elif gold.kind == "documents":
            ids.update(dict.fromkeys(gold.items, ""))

    missing_titles = set(titles)
    missing_ids = set(ids)
    for chunk in chunks if titles or ids else ():
        missing_titles.discard(chunk_title_key(chunk))
        missing_ids.discard(chunk.metadata.doc_id)

    # In the order of the questions.
    keys = [key for key in titles if key in missing_titles]
    names = [name for name in ids if name in missing_ids]
    near_titles = _nearest(keys[:LISTED], chunks, _title)
    near_ids = _nearest(names[:LISTED], chunks, _document)

    listed: list[MissingDocument] = []
    for key in keys:
        listed.append(MissingDocument(name=titles[key], nearest=near_titles.get(key)))
    for name in names:
        listed.append(MissingDocument(name=name, nearest=near_ids.get(name)))

    return MissingGold(
        documents=len(titles) + len(ids), missing=len(listed), listed=tuple(listed[:LISTED])
    )


def _title(chunk: Chunk) -> tuple[str, str]:
    return chunk_title_key(chunk), chunk.title


def _document(chunk: Chunk) -> tuple[str, str]:
    return chunk.metadata.doc_id, chunk.metadata.doc_id


class _MissingKey:
    """A key that no chunk has, and the name whose key is the most similar so far."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.nearest = ""
        self._ratio = NEAREST_RATIO
        self._words = set(key.split())

        # The matcher keeps what it learns of its second sequence, so that one is the fixed one.
        self._matcher = SequenceMatcher(None, "", key, autojunk=False)

    def compare(self, candidate: str, candidate_words: set[str], name: str) -> None:
        """Take a candidate's name if its key is more similar than those before it."""
        # A look at words costs a hundredth of a comparison.
        if candidate[:3] != self.key[:3] and self._words.isdisjoint(candidate_words):
            return

        # The quick ratio is an upper bound.
        self._matcher.set_seq1(candidate)
        if self._matcher.quick_ratio() <= self._ratio:
            return

        ratio = self._matcher.ratio()
        if ratio > self._ratio:
            self._ratio = ratio
            self.nearest = name


def _nearest(
    keys: Sequence[str], chunks: Iterable[Chunk], key_and_name: Callable[[Chunk], tuple[str, str]]
) -> dict[str, str]:
    """Return the name of the chunk whose key is the most similar, for each key that has one."""
    if not keys:
        return {}

    missing = [_MissingKey(key) for key in keys]
    last = ""

    for chunk in chunks:
        candidate, name = key_and_name(chunk)

        # Chunks of a document follow each other.
        if candidate == last:
            continue
        last = candidate

        candidate_words = set(candidate.split())
        for key in missing:
            key.compare(candidate, candidate_words, name)

    return {key.key: key.nearest for key in missing if key.nearest}


def warn_of_missing(chunks: Sequence[Chunk], golds: Iterable[Gold], what: str) -> None:
    """Log the gold documents of ``what`` that are not in the corpus, if there are any."""
    missing = find_missing(chunks, golds)
    if missing.missing:
        _LOG.warning("%s: %s", what, missing)
