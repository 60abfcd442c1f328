"""Passages linked by rare terms, and the splits of their documents.

A term is a name (a run of capitalised words, but not just the first word of a sentence) or a word
with digits. It is rare if two to :data:`MOST_DOCUMENTS` documents use it. Two passages of different
documents that share one are a pair; a pair and a third passage that shares another term with the
second are a chain.

Documents are split before any question is written. Those that share rare terms go to the same
split, in groups of at most :data:`LARGEST_GROUP` of all documents; passages are combined only
within a split.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deepsearch_rl.core.records import Chunk

# Most documents that use a rare term
MOST_DOCUMENTS = 6
# Largest share of all documents that is kept together
LARGEST_GROUP = 0.1
# A word with a Latin, Greek or Cyrillic capital
_CAPITAL = "[A-Z\u00c0-\u00de\u0391-\u03a9\u0410-\u042f][\\w'\u2019-]*"
_NAME = re.compile(rf"\b{_CAPITAL}(?: (?:(?:of|the|de|van|von|and) )?{_CAPITAL})*")
_CODE = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w{3,}\b")
_SENTENCE_START = re.compile(r"(?:^|[.!?:\n]\s*)$")
# Fewest characters of a term
SHORTEST = 4


@dataclass(frozen=True, slots=True)
class PassageGroup:
    """Passages to write questions about, in the order of the chain; ``terms`` link each to the next."""

    chunks: tuple[Chunk, ...]
    terms: tuple[str, ...]
    split: str

    @property
    def ids(self) -> set[str]:
        """The ids of the passages."""
        return {chunk.id for chunk in self.chunks}

    @property
    def kind(self) -> str:
        """``single``, ``pair`` or ``chain``."""
        return ("single", "pair", "chain")[len(self.chunks) - 1]


def terms_of(text: str) -> set[str]:
    """Return the names and codes of a text, in lower case."""
    terms: set[str] = set()
    for match in _NAME.finditer(text):
        name = match[0]
        starts = _SENTENCE_START.search(text[max(0, match.start() - 3) : match.start()])
        # A sentence's first word has a capital whatever it is
        if starts and " " not in name:
            continue
        if len(name) >= SHORTEST:
            terms.add(name.lower())

    terms.update(match[0].lower() for match in _CODE.finditer(text))
    return terms


def rare_terms(chunks: Iterable[Chunk]) -> dict[str, list[Chunk]]:
    """Return the passages that use each rare term, in order."""
    passages: dict[str, list[Chunk]] = defaultdict(list)
    documents: dict[str, set[str]] = defaultdict(set)
    for chunk in chunks:
        for term in terms_of(chunk.contents):
            passages[term].append(chunk)
            documents[term].add(chunk.metadata.doc_id)

    rare: dict[str, list[Chunk]] = {}
    for term in sorted(passages):
        if 2 <= len(documents[term]) <= MOST_DOCUMENTS:
            rare[term] = passages[term]

    return rare


def split_documents(
    documents: Sequence[str],
    rare: Mapping[str, Sequence[Chunk]],
    shares: Mapping[str, float],
    rng: random.Random,
) -> dict[str, str]:
    """Return the split of every document; groups that share rare terms stay together, the rarest first.

    ``shares`` of the documents by split add up to 1.
    """
    groups = _DocumentGroups(documents, max(2, round(LARGEST_GROUP * len(documents))))
    by_rarity = sorted(rare, key=lambda term: (len(_documents_of(rare[term])), term))
    for term in by_rarity:
        first, *others = _documents_of(rare[term])
        for other in others:
            groups.join(first, other)

    shuffled = groups.all()
    rng.shuffle(shuffled)
    shuffled.sort(key=len, reverse=True)
    room = {name: share * len(documents) for name, share in shares.items()}
    split_of: dict[str, str] = {}

    for group in shuffled:
        # The emptiest split takes the next group
        split = max(room, key=lambda name: (room[name], name))
        room[split] -= len(group)
        split_of.update(dict.fromkeys(group, split))

    return split_of


def _documents_of(chunks: Iterable[Chunk]) -> list[str]:
    return list(dict.fromkeys(chunk.metadata.doc_id for chunk in chunks))


class _DocumentGroups:
    def __init__(self, documents: Iterable[str], largest: int) -> None:
        self._group_of = {name: [name] for name in documents}
        self._largest = largest

    def join(self, first: str, second: str) -> None:
        """Join the groups of two documents unless the result would be too large."""
        group = self._group_of[first]
        other = self._group_of[second]
        if group is other or len(group) + len(other) > self._largest:
            return
        group.extend(other)
        self._group_of.update(dict.fromkeys(other, group))

    def all(self) -> list[list[str]]:
        """Return the groups, in the order of their first documents."""
        return list({id(group): group for group in self._group_of.values()}.values())


def passage_groups(
    chunks: Sequence[Chunk],
    rare: Mapping[str, Sequence[Chunk]],
    split_of: Mapping[str, str],
    rng: random.Random,
) -> Iterator[PassageGroup]:
    """Yield chains, pairs and singles in turn, each kind in random order and each group within one split."""
    pairs = list(_pairs(rare, split_of))
    rng.shuffle(pairs)
    singles = [PassageGroup((chunk,), (), split_of[chunk.metadata.doc_id]) for chunk in chunks]
    rng.shuffle(singles)
    chains = _chains(pairs)

    # In turn, so that a small budget pays for questions of every kind
    kinds: list[Iterator[PassageGroup]] = [iter(pairs), chains, iter(singles)]
    while kinds:
        for kind in list(kinds):
            group = next(kind, None)
            if group is None:
                kinds.remove(kind)
            else:
                yield group


def _pairs(
    rare: Mapping[str, Sequence[Chunk]], split_of: Mapping[str, str]
) -> Iterator[PassageGroup]:
    linked: set[frozenset[str]] = set()
    for term, passages in rare.items():
        for place, first in enumerate(passages):
            for second in passages[place + 1 :]:
                key = frozenset((first.id, second.id))
                split = split_of[first.metadata.doc_id]
                is_new = key not in linked and first.metadata.doc_id != second.metadata.doc_id
                if is_new and split == split_of[second.metadata.doc_id]:
                    linked.add(key)
                    yield PassageGroup((first, second), (term,), split)


def _chains(pairs: Sequence[PassageGroup]) -> Iterator[PassageGroup]:
    """Yield three passages of three documents for each pair that another pair continues."""
    from_chunk: dict[str, list[PassageGroup]] = defaultdict(list)
    for pair in pairs:
        from_chunk[pair.chunks[0].id].append(pair)

    for pair in pairs:
        documents = {chunk.metadata.doc_id for chunk in pair.chunks}
        for following in from_chunk[pair.chunks[1].id]:
            last = following.chunks[1]
            if last.metadata.doc_id not in documents and following.terms != pair.terms:
                yield PassageGroup(
                    (*pair.chunks, last), (*pair.terms, *following.terms), pair.split
                )
                break
