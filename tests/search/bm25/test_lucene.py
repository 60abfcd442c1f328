import gzip
import json
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnavailableError
from deepsearch_rl.search.bm25.builtin import Bm25Config, Bm25Index
from deepsearch_rl.search.bm25.lucene import LuceneConfig, LuceneIndex, start_jvm
from tests.chunks import make_chunks

CONFIG = LuceneConfig(engine="lucene", k1=0.9, b=0.4, heap_mb=256)
TEXTS = [
    "lander comet comet",
    "river country 😀",
    "comet probe \x00 orbit river",
    "Füße 東京",
    "the of",
]

SEARCH_AND_STOP = """
import json, os, signal, sys
from pathlib import Path
from deepsearch_rl.search.bm25.lucene import LuceneIndex
from deepsearch_rl.search.bm25.lucene import LuceneConfig
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs without
index = LuceneIndex.open(Path(sys.argv[1]), LuceneConfig.model_validate_json(sys.argv[2]))
assert "torch" not in sys.modules and "openai" not in sys.modules
sys.setrecursionlimit(20_000)
json.loads("[" * 9000 + "]" * 9000)  # takes more of the main thread's stack than the megabyte that Java would leave
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print(index.search(["comet"], 2)[0].rows_K.tolist())
"""


needs_pyserini = pytest.mark.skipif(
    find_spec("jnius_config") is None, reason="the extra pyserini is not installed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lucene")
    before = dict(os.environ)
    LuceneIndex.build(make_chunks(TEXTS), folder, CONFIG)
    assert dict(os.environ) == before
    return folder


@pytest.mark.slow
@needs_pyserini
def test_words_of_any_script_are_found_on_their_rows(folder: Path) -> None:
    queries = ["comet", "😀", "東京 füße", "The RIVERS!", "the of", "", "comet " * 3000]
    found = [
        ranking.rows_K.tolist() for ranking in LuceneIndex.open(folder, CONFIG).search(queries, 10)
    ]
    assert found == [[0, 2], [1], [3], [1, 2], [], [], [0, 2]]


@pytest.mark.nightly
@needs_pyserini
def test_threads_that_java_has_not_seen_may_search(folder: Path) -> None:
    index = LuceneIndex.open(folder, CONFIG)
    found: list[list[int]] = []
    ask = lambda: found.extend(index.search(["comet"], 5)[0].rows_K.tolist() for _ in range(50))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[0, 2]] * 200


@pytest.mark.nightly
@needs_pyserini
def test_a_process_with_java_keeps_its_stack_and_its_signals_and_ends(folder: Path) -> None:
    command = [sys.executable, "-c", SEARCH_AND_STOP, str(folder), CONFIG.model_dump_json()]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("[0, 2]\n", "")


@pytest.mark.slow
@needs_pyserini
def test_a_missing_or_damaged_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="build it again"):
        LuceneIndex.open(tmp_path / "none", CONFIG)
    LuceneIndex.build(make_chunks(TEXTS), tmp_path, CONFIG)
    [segment] = tmp_path.glob("*.cfs")
    os.truncate(segment, 100)
    with pytest.raises(ArtifactError, match="build it again"):
        LuceneIndex.open(tmp_path, CONFIG)


@pytest.mark.slow
@needs_pyserini
def test_a_folder_that_cannot_be_written_is_named() -> None:
    with pytest.raises(ArtifactError, match="/proc/none"):
        LuceneIndex.build(make_chunks(TEXTS), Path("/proc/none"), CONFIG)


@pytest.mark.slow
@needs_pyserini
def test_a_corpus_of_stop_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LuceneIndex.build(make_chunks(["the of", "and ..."]), tmp_path, CONFIG)


@pytest.mark.nightly
@needs_pyserini
@pytest.mark.realdata
def test_on_real_passages_it_agrees_with_the_built_in_index(
    tmp_path: Path, real_data: Path
) -> None:
    with gzip.open(real_data / "wiki18/sample1000.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["contents"] for line in lines]
    queries = [text[40:140] for text in texts[::10]]
    builtin = Bm25Config(engine="builtin", k1=0.9, b=0.4, fields={"contents": 1.0})
    ours = Bm25Index.build(make_chunks(texts), tmp_path / "ours", builtin).search(queries, 10)
    theirs = LuceneIndex.build(make_chunks(texts), tmp_path / "lucene", CONFIG).search(queries, 10)
    overlaps = [
        len(set(one.rows_K.tolist()) & set(other.rows_K.tolist())) / 10
        for one, other in zip(ours, theirs, strict=True)
    ]
    assert fmean(overlaps) > 0.85
    assert (
        fmean(one.rows_K[0] == other.rows_K[0] for one, other in zip(ours, theirs, strict=True))
        > 0.95
    )


def test_without_pyserini_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyserini", None)
    with pytest.raises(UnavailableError, match="EXTRAS='--extra pyserini'"):
        start_jvm(256)
