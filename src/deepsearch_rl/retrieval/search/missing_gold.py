"""Gold documents that a corpus does not have: every score that they count in is lower than the retriever deserves."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.corpora.reading.titles import title_key
from deepsearch_rl.retrieval.ranking.gold import Gold, chunk_title_key

LISTED = 20
# Of a name that may be another spelling (difflib's measure, 0 to 1)
NEAREST_RATIO = 0.6
_LOG = logging.getLogger(__name__)


class MissingDocument(Record):
    """A gold document that no chunk belongs to."""

    name: str
    nearest: str | None = None
    """The most similar title or id of the corpus, where there is one."""


class MissingGold(Record):
    """The gold documents of some questions that a corpus does not have."""

    documents: int
    missing: int
    listed: tuple[MissingDocument, ...]
    """The first of the missing ones."""

    def __str__(self) -> str:
        names = [
            f"{each.name!r}" + (f" (nearest: {each.nearest!r})" if each.nearest else "")
            for each in self.listed
        ]
        rest = f" and {self.missing - len(names)} more" if self.missing > len(names) else ""
        return f"{self.missing} of {self.documents} gold documents are not in the corpus: {', '.join(names)}{rest}"


def find_missing(chunks: Sequence[Chunk], golds: Iterable[Gold]) -> MissingGold:
    """Return which gold titles and documents no chunk has; facts are not looked for.

    The chunks are read once where nothing is missing, twice otherwise, and not at all without
    titles and documents.
    """
    titles: dict[str, str] = {}
    ids: dict[str, str] = {}

    for gold in golds:
        if gold.kind == "titles":
            titles.update({title_key(title): title for title in gold.items})
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
    near_titles = _nearest(
        keys[:LISTED], lambda: ((chunk_title_key(chunk), chunk.title) for chunk in chunks)
    )
    near_ids = _nearest(
        names[:LISTED], lambda: ((chunk.metadata.doc_id, chunk.metadata.doc_id) for chunk in chunks)
    )
    listed = [MissingDocument(name=titles[key], nearest=near_titles.get(key)) for key in keys]
    listed += [MissingDocument(name=name, nearest=near_ids.get(name)) for name in names]
    return MissingGold(
        documents=len(titles) + len(ids), missing=len(listed), listed=tuple(listed[:LISTED])
    )


def _nearest(
    wanted: Sequence[str], candidates: Callable[[], Iterator[tuple[str, str]]]
) -> dict[str, str]:
    """Return the most similar of the candidates, pairs of a key and a name, for each wanted key that has one."""
    if not wanted:
        return {}
    best: dict[str, tuple[float, str]] = {key: (NEAREST_RATIO, "") for key in wanted}
    matchers = {key: SequenceMatcher(None, "", key, autojunk=False) for key in wanted}
    words = {key: set(key.split()) for key in wanted}
    last = ""

    for candidate, name in candidates():
        if candidate == last:  # chunks of a document follow each other
            continue
        last = candidate
        candidate_words = set(candidate.split())

        for key, matcher in matchers.items():
            # A look at words costs a hundredth of a comparison.
            if candidate[:3] != key[:3] and words[key].isdisjoint(candidate_words):
                continue
            matcher.set_seq1(candidate)
            if matcher.quick_ratio() > best[key][0] and (ratio := matcher.ratio()) > best[key][0]:
                best[key] = ratio, name

    return {key: name for key, (_, name) in best.items() if name}


def warn_of_missing(chunks: Sequence[Chunk], golds: Iterable[Gold], what: str) -> None:
    """Log the gold documents of ``what`` that are not in the corpus, if there are any."""
    missing = find_missing(chunks, golds)
    if missing.missing:
        _LOG.warning("%s: %s", what, missing)
