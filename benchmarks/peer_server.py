"""A retrieval server that serves as Search-R1's does: what benchmarks compare the project's with.

    python -m benchmarks.peer_server CHUNKS VECTORS ENCODER PORT

It is not Search-R1's code but an imitation of its way of serving (search/retrieval_server.py of that
project, which RLinf's follows): FastAPI with a function in a thread, one request encoded after the
other as it came, in the request's order, padded to its longest query; torch with as many threads as
it takes by itself; FAISS's flat index; passages from a list. One lock keeps requests from slowing
each other. The vectors are those of the index that the project's server reads.
"""

import json
import sys
import threading
from pathlib import Path

import faiss
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModel, AutoTokenizer

from deepsearch_rl.core.processes import LOOPBACK

MAX_TOKENS = 256
BATCH = 512


class QueryRequest(BaseModel):
    """A request as veRL and Search-R1 send it."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class DenseRetriever:
    """Encoder, index and passages."""

    def __init__(self, chunks: Path, vectors: Path, encoder: Path) -> None:
        with chunks.open(encoding="utf-8") as lines:
            self._corpus = [json.loads(line) for line in lines]
        embeddings_ND = np.load(vectors).astype(np.float32)
        self._index = faiss.IndexFlatIP(embeddings_ND.shape[1])
        self._index.add(embeddings_ND)
        self._tokenizer = AutoTokenizer.from_pretrained(encoder, use_fast=True)
        self._model = AutoModel.from_pretrained(encoder).eval()

    @torch.no_grad()
    def _encode(self, queries: list[str]) -> np.ndarray:
        inputs = self._tokenizer(
            queries, max_length=MAX_TOKENS, padding=True, truncation=True, return_tensors="pt"
        )
        hidden_BTD = self._model(**inputs, return_dict=True).last_hidden_state
        mask_BT1 = inputs["attention_mask"][..., None].bool()
        hidden_BTD = hidden_BTD.masked_fill(~mask_BT1, 0.0)
        pooled_BD = hidden_BTD.sum(dim=1) / mask_BT1.sum(dim=1)
        return torch.nn.functional.normalize(pooled_BD, dim=-1).numpy()

    def batch_search(self, queries: list[str], top_k: int) -> list[list[dict[str, object]]]:
        """Return every query's passages with their scores."""
        results: list[list[dict[str, object]]] = []
        for start in range(0, len(queries), BATCH):
            scores_QK, rows_QK = self._index.search(
                self._encode(queries[start : start + BATCH]), k=top_k
            )
            for scores_K, rows_K in zip(scores_QK.tolist(), rows_QK.tolist(), strict=True):
                passages: list[dict[str, object]] = []
                for score, row in zip(scores_K, rows_K, strict=True):
                    passages.append({"document": self._corpus[row], "score": score})
                results.append(passages)

        return results


def make_app(retriever: DenseRetriever) -> FastAPI:
    """Return the application."""
    app = FastAPI()
    lock = threading.Lock()

    @app.get("/healthz")
    def healthz() -> str:
        return "ok"

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, object]:
        with lock:
            results = retriever.batch_search(request.queries, request.topk or 3)
        return {"result": results}

    return app


def main() -> None:
    """Serve until a signal comes."""
    chunks, vectors, encoder = map(Path, sys.argv[1:4])
    app = make_app(DenseRetriever(chunks, vectors, encoder))
    uvicorn.run(app, host=LOOPBACK, port=int(sys.argv[4]), log_level="critical")


if __name__ == "__main__":
    main()
