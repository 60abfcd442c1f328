"""Small settings of index, agent and retrieval server that tests of several packages start from."""

from pathlib import Path

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.core.stage import Scratch
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.server.launch import RetrievalConfig

INDEX = IndexConfig.model_validate(
    {
        "bm25": {"engine": "builtin", "k1": 0.9, "b": 0.4, "fields": {"contents": 1.0}},
        "encoder": {"name": "tfidf_svd", "dimension": 4, "fit_rows": 1000, "max_terms": 1000},
        "encoding": {"dtype": "float32", "block_rows": 4096},
        "vectors": {"kind": "flat"},
        "fusion": {
            "depth": 10,
            "source_depth": 5,
            "unlearned": "reciprocal_ranks",
            "rrf_k": 60,
            "bm25_weight": 1.0,
            "dense_weight": 0.5,
            "learning": None,
        },
    }
)
AGENT = AgentConfig(
    protocol="function_calling",
    prompt="tiny",
    history_reasoning=False,
    max_searches=2,
    max_turns=3,
    max_tokens=20,
    answer_tokens=8,
    max_observation_tokens=None,
    context_tokens=2000,
    timeout_s=20,
    call_timeout_s=20,
    concurrency=4,
)
RETRIEVAL = RetrievalConfig(
    retriever="bm25",
    dataset_retrievers={},
    top_k=2,
    window_ms=0,
    max_batch=32,
    cache_entries=100,
    pages=None,
    reranker=None,
    online=None,
    startup_timeout_s=60,
)


def new_scratch(folder: Path, stage: str = "rl@sft") -> Scratch:
    """Return a scratch folder of a stage below a folder, as a first run gets it."""
    path = folder / "work" / "scratch" / stage / "0123456789ab"
    path.mkdir(parents=True, exist_ok=True)
    return Scratch(stage, path, folder / "work" / "curves" / "rl-sft-0123456789ab.jsonl")
