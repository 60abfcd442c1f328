"""The work of the stages that make data: written questions, corpora and their indexes."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepsearch_rl.cli.planning.answer_work import model_name
from deepsearch_rl.cli.planning.sizes import GIB, Sizes, StageWork
from deepsearch_rl.search import IndexHalf

# Of the tokens of make_questions, those that the model writes; assumed
WRITTEN_SHARE = 0.1


def question_writing(sizes: Sizes) -> Iterator[StageWork]:
    """Yield the writing of questions about each folder of documents, as if its whole budget were spent."""
    section = sizes.profile.value("make_questions")
    for name in section["documents"]:
        writer = section["writer"]
        tokens = section["budget_tokens"]
        calls = tokens / sizes.slope("question_call_tokens") / writer["concurrency"]
        # Passages are read again for every answer, and replies are short
        split = (tokens * (1 - WRITTEN_SHARE), tokens * WRITTEN_SHARE)
        model = model_name(writer["endpoint"]["model"])
        stage = f"make_questions@{name}"
        yield sizes.stage(stage, {"api_call_s": calls}, api=model, tokens=split)


def corpora(sizes: Sizes) -> Iterator[StageWork]:
    """Yield what makes corpora searchable: download, chunk and index."""
    download = sizes.profile.value("download")
    index = sizes.profile.value("index")
    passages_of = sizes.passages()
    passages = sum(passages_of.values())

    hub = 0.0
    if download.get("hub"):
        gigabytes = sizes.file.sizes.download_gb
        hub = sum(gigabytes.get(name, 0.1) for name in download["hub"]["repositories"])

    # Of a passage's bytes, documents and chunks have a fifth each, and the index the rest
    disk_gib = sizes.disk_gib(passages * sizes.slope("passage_bytes"))
    yield sizes.stage("download", {"download_gb_s": hub}, disk_gib=hub + disk_gib / 5)
    yield sizes.stage("chunk", {"chunk_passage_s": passages}, disk_gib=disk_gib / 5)

    # passage_bytes counts both halves of an index; a corpus may have one
    without_bm25 = 0
    without_vectors = 0
    for corpus, size in passages_of.items():
        if not _builds(index, corpus, "bm25"):
            without_bm25 += size
        if not _builds(index, corpus, "dense"):
            without_vectors += size

    missing_bytes = without_bm25 * sizes.slope("bm25_bytes")
    missing_bytes += without_vectors * sizes.slope("vector_bytes")
    encoder = index["encoder"]["name"] if index["encoder"] else ""
    is_transformer = encoder in ("transformers", "onnx")
    encoded = passages - without_vectors if is_transformer else 0
    yield sizes.stage(
        "index",
        {"index_passage_s": passages, "encode_passage_s": encoded},
        disk_gib=disk_gib * 3 / 5 - sizes.disk_gib(missing_bytes),
        host_gib=passages * sizes.slope("index_memory_bytes") / GIB,
        gpu_gib=sizes.slope("process_gib") if encoded else 0.0,
    )


def _builds(index: Mapping[str, Any], corpus: str, half: IndexHalf) -> bool:
    """Return whether section ``index`` has a half built for a corpus."""
    is_described = index["encoder" if half == "dense" else half] is not None
    return is_described and index["corpus_only"].get(corpus, half) == half
