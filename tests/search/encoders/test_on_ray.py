"""The engine ray on real Ray processes of this machine, all on 127.0.0.1."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepsearch_rl.core.errors import UnavailableError
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.encoders import encoding
from deepsearch_rl.search.encoders.configs import TfidfSvdConfig
from deepsearch_rl.search.encoders.encoding import EncodingConfig, EncodingJob, prepare_encoder
from deepsearch_rl.search.rows import ChunkStore, write_rows
from tests.chunks import make_chunks
from tests.search.encoders.folders import transformers_config, write_bert

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CHUNKS = make_chunks([f"comet {'river ' * (row % 40)}lander {row}" for row in range(24_000)])
BLOCKS = 12
LOCAL = {"engine": "local", "dtype": "float32", "block_rows": len(CHUNKS) // BLOCKS, "ray": None}
"""Blocks of 128 kB: too large to travel in Ray's messages, so that those of a lost node are lost."""
WORKERS = {"workers": 2, "cpus_per_worker": 1, "gpus_per_worker": 0, "object_store_mb": 80}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    for name, value in {**encoding.LOOPBACK_ONLY, "RAY_AUTH_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    package = pytest.importorskip("ray", reason="the extra ray is not installed")
    yield package
    package.shutdown()


@pytest.fixture
def cluster(ray) -> Iterator:
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - only once the environment is set

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    nodes = Cluster()
    try:
        nodes.add_node(include_dashboard=False, **node)
        nodes.add_node(**node)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def on_a_cluster(address: str | None) -> EncodingConfig:
    return EncodingConfig.model_validate(
        {**LOCAL, "engine": "ray", "ray": {"address": address, **WORKERS}}
    )


@pytest.mark.nightly
def test_a_node_that_dies_midway_changes_no_byte(
    cluster: Any, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = transformers_config(write_bert(tmp_path / "bert"), max_tokens=48, batch_tokens=2048)
    prepare_encoder(CHUNKS, encoder, tmp_path / "learnt", seed=0)
    write_jsonl(tmp_path / "chunks.jsonl", CHUNKS)
    write_rows(tmp_path / "chunks.jsonl", tmp_path / "rows")
    chunks = ChunkStore(tmp_path / "chunks.jsonl", tmp_path / "rows")
    local = EncodingJob(encoder, tmp_path / "learnt", chunks, EncodingConfig(**LOCAL))
    encoding.encode_to_file(local, "digest", tmp_path / "local.npy", tmp_path / "work1")

    written = []
    write = encoding.write_rows

    def write_then_kill(*arguments: object) -> None:
        write(*arguments)
        written.append(1)
        both_encode = ray.available_resources().get("CPU", 0) == 0
        if cluster.worker_nodes and both_encode and len(written) > 1:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    monkeypatch.setattr(encoding, "write_rows", write_then_kill)
    on_cluster = EncodingJob(encoder, tmp_path / "learnt", chunks, on_a_cluster(cluster.address))
    encoding.encode_to_file(on_cluster, "digest", tmp_path / "ray.npy", tmp_path / "work2")
    # The second node was killed, while an encoder ran on it
    assert not cluster.worker_nodes
    assert len(written) == BLOCKS
    assert (tmp_path / "ray.npy").read_bytes() == (tmp_path / "local.npy").read_bytes()


@pytest.mark.nightly
def test_a_ray_of_its_own_is_stopped_and_the_workers_error_is_told(
    ray: Any, tmp_path: Path
) -> None:
    encoder = TfidfSvdConfig(name="tfidf_svd", dimension=4, fit_rows=100, max_terms=100)
    (tmp_path / "learnt").mkdir()
    job = EncodingJob(encoder, tmp_path / "learnt", CHUNKS, on_a_cluster(None))
    with pytest.raises(UnavailableError, match="build the index again"):
        encoding.encode_to_file(job, "digest", tmp_path / "out.npy", tmp_path / "work")
    assert not ray.is_initialized()
    assert not (tmp_path / "out.npy").exists()


def test_a_cluster_that_does_not_answer_is_named(ray: Any, tmp_path: Path) -> None:
    encoder = TfidfSvdConfig(name="tfidf_svd", dimension=4, fit_rows=100, max_terms=100)
    chunks = CHUNKS[:100]
    prepare_encoder(chunks, encoder, tmp_path / "learnt", seed=0)
    job = EncodingJob(encoder, tmp_path / "learnt", chunks, on_a_cluster("auto"))
    with pytest.raises(UnavailableError, match="the Ray cluster at auto cannot be reached"):
        encoding.encode_to_file(job, "digest", tmp_path / "out.npy", tmp_path / "work")
    assert not ray.is_initialized()
