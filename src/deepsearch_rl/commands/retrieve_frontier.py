"""``deepsearch retrieve frontier``: which vector index to build."""

import re
from pathlib import Path
from typing import Annotated

import typer

from deepsearch_rl.errors import ArtifactError, ConfigError

UNITS_MB = {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "tb": 1e6}


def frontier_command(
    out: Annotated[Path, typer.Option(help="Folder for frontier.csv and frontier.png.")],
    vectors: Annotated[Path | None, typer.Option(help="Vectors to index, an N x D .npy file of unit rows.")] = None,
    index: Annotated[Path | None, typer.Option(help="Or an index folder that keeps its vectors.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Query vectors, a .npy file.")] = None,
    sample_queries: Annotated[
        int,
        typer.Option(
            help="Without --queries: this many of the vectors, which do not count as hits of themselves.", min=1
        ),
    ] = 500,
    memory_budget: Annotated[str, typer.Option(help="Memory that an index may take, e.g. 2GB or 300MB.")] = "2GB",
    target: Annotated[
        float,
        typer.Option(help="Recall@5 to reach; of the settings that do, the fastest is recommended.", min=0, max=1),
    ] = 0.95,
    kinds: Annotated[
        str, typer.Option(help="Kinds of index, separated by commas.")
    ] = "flat,ivf_flat,ivf_pq,ivf_pq_refine,hnsw",
    nlist: Annotated[int | None, typer.Option(help="Cells; without it the square root of the rows.", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Queries searched together.", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.", min=0, max=2**31 - 1)] = 0,
) -> None:
    """Measure recall@5, speed and memory over the kinds of vector index, and recommend one for a memory budget.

    Every kind is built over these vectors in turn and removed again. Queries/s are of one core with all files in the
    page cache. HNSW takes longest to build: leave it out of --kinds where there are millions of vectors.
    """
    from deepsearch_rl.retrieval.measurement import frontier, frontier_report  # noqa: PLC0415 - loads FAISS
    from deepsearch_rl.retrieval.vectors.flat import open_vector_file  # noqa: PLC0415

    budget_mb, path = megabytes_of(memory_budget), vectors_of(vectors, index)
    file = open_vector_file(path)
    out.mkdir(parents=True, exist_ok=True)
    frontier.require_room(path, out)
    settings = frontier.sweeps(file.rows, file.dimension, [kind.strip() for kind in kinds.split(",")], nlist)
    sample = frontier.prepare_queries(file, queries, sample_queries, out / "queries.npy", seed)
    points = frontier.measure_frontier(path, sample, settings, batch, out, seed)
    best = frontier.recommend(points, budget_mb, target)
    frontier_report.write_points(points, out / "frontier.csv")
    frontier_report.draw_frontier(points, best, budget_mb, out / "frontier.png")
    typer.echo("\n".join(frontier_report.described(point) for point in frontier.pareto(points)))
    typer.echo(f"\nAll settings: {out / 'frontier.csv'} and {out / 'frontier.png'}.")
    if best is None:
        least_mb = min(point.memory_mb for point in points)
        raise ConfigError(f"no index fits {memory_budget}; the smallest takes {least_mb:.1f} MB.")
    typer.echo(f"For {memory_budget}, {frontier_report.described(best)}:\n\n  {frontier_report.snippet(best.config)}")


def vectors_of(vectors: Path | None, index: Path | None) -> Path:
    """Return the vectors file that the options name.

    Raises:
        ConfigError: not exactly one of them is given.
        ArtifactError: the index keeps no vectors file.
    """
    if vectors is not None and index is None:
        return vectors
    if index is None or vectors is not None:
        raise ConfigError("give either --vectors FILE.npy or --index DIR.")
    path = index / "dense" / "vectors.npy"
    if not path.is_file():
        raise ArtifactError(
            f"{path} does not exist: the index is missing, or of a kind that keeps no vectors file. Give --vectors, "
            f"or build the index with kind flat or ivf_pq_refine."
        )
    return path


def megabytes_of(text: str) -> float:
    """Return a size such as ``2GB`` in 10^6 bytes.

    Raises:
        ConfigError: it is no such size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]b)\s*", text.lower())
    if match is None:
        raise ConfigError(f"--memory-budget {text!r} is not a size; write for example 2GB or 300MB.")
    return float(match[1]) * UNITS_MB[match[2]]
