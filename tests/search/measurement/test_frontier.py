import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from deepsearch_rl.cli.main import app
from deepsearch_rl.cli.retrieve_measure import megabytes_of, vectors_of
from deepsearch_rl.core.errors import ArtifactError, ConfigError, UnknownNameError
from deepsearch_rl.search.encoders.encoder import normalise_rows
from deepsearch_rl.search.frontier import (
    KINDS,
    Point,
    pareto,
    prepare_queries,
    recall,
    recommend,
    require_room,
    sweeps,
    without_own,
)
from deepsearch_rl.search.vectors.config import FlatConfig, IvfPqConfig
from deepsearch_rl.search.vectors.flat import open_vector_file


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npy"
    np.save(
        path, normalise_rows(np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32))
    )
    return path


def point(recall: float, speed: float, memory: float) -> Point:
    return Point(FlatConfig(kind="flat"), recall, speed, memory, 0.0)


SLOW_EXACT, QUICK_COARSE, MIDDLING = point(1.0, 10, 900), point(0.6, 1000, 50), point(0.96, 100, 60)
BEATEN = point(0.6, 90, 60)


@pytest.mark.parametrize(
    ("budget_mb", "target", "expected"),
    [
        (1000, 0.95, MIDDLING),
        (1000, 0.99, SLOW_EXACT),
        (100, 0.99, MIDDLING),
        (1000, 0.5, QUICK_COARSE),
        (50, 0.99, QUICK_COARSE),
        (49, 0.5, None),
    ],
)
def test_the_fastest_setting_that_fits_and_reaches_the_target_is_recommended(
    budget_mb: float, target: float, expected: Point | None
) -> None:
    assert recommend([SLOW_EXACT, QUICK_COARSE, MIDDLING, BEATEN], budget_mb, target) is expected


def test_settings_that_others_beat_in_recall_and_speed_are_no_part_of_the_frontier() -> None:
    assert pareto([BEATEN, SLOW_EXACT, QUICK_COARSE, MIDDLING]) == [
        QUICK_COARSE,
        MIDDLING,
        SLOW_EXACT,
    ]


def test_recall_is_the_mean_share_of_true_rows_found_in_any_order() -> None:
    true_QK = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    assert recall([np.array([5, 4, 3, 2, 1]), np.array([6, 0, 7])], true_QK) == pytest.approx(0.7)


def test_a_sampled_query_does_not_count_its_own_row(vectors: Path, tmp_path: Path) -> None:
    file = open_vector_file(vectors)
    queries = prepare_queries(file, None, 50, tmp_path / "queries.npy", seed=0)
    assert not (queries.true_QK == queries.own_Q[:, None]).any()
    scores_QN = np.load(queries.path) @ file.vectors_ND.T
    scores_QN[np.arange(50), queries.own_Q] = -np.inf
    np.testing.assert_array_equal(queries.true_QK, np.argsort(-scores_QN, axis=1)[:, :5])


def test_without_its_own_row_a_query_keeps_the_order_of_the_others() -> None:
    rows = list(np.array([[7, 3, 1, 2, 9, 4], [0, 1, 2, 3, 4, 5]]))
    assert [rows_K.tolist() for rows_K in without_own(rows, np.array([1, 8]))] == [
        [7, 3, 2, 9, 4],
        [0, 1, 2, 3, 4],
    ]


def test_every_kind_is_swept_and_codes_are_built_once() -> None:
    builds = sweeps(1_000_000, 768, KINDS, None)
    assert {config.kind for build in builds for config in build} == set(KINDS)
    assert [{config.kind for config in build} for build in builds].count(
        {"ivf_pq", "ivf_pq_refine"}
    ) == 2
    coded = [config for build in builds for config in build if isinstance(config, IvfPqConfig)]
    assert {(config.nlist, config.m, config.nbits) for config in coded} == {
        (1000, 96, 8),
        (1000, 128, 4),
    }
    assert [config.nprobe for config in coded] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 1000] * 2


def test_what_cannot_be_measured_is_refused(vectors: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'ivf_pq'"):
        sweeps(100, 8, ["ivfpq"], None)
    np.save(tmp_path / "other.npy", np.zeros((3, 8), dtype=np.float32))
    with pytest.raises(ArtifactError, match="dimensions"):
        prepare_queries(
            open_vector_file(vectors), tmp_path / "other.npy", 5, tmp_path / "queries.npy", seed=0
        )
    with pytest.raises(ConfigError, match="too few"):
        prepare_queries(
            open_vector_file(tmp_path / "other.npy"), None, 5, tmp_path / "queries.npy", seed=0
        )
    with pytest.raises(ConfigError, match="either --vectors"):
        vectors_of(None, None)
    with pytest.raises(ArtifactError, match="keeps no vectors file"):
        vectors_of(None, tmp_path)


def test_a_full_disk_is_foreseen(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=vectors.stat().st_size))
    with pytest.raises(ConfigError, match="room"):
        require_room(vectors, tmp_path)

    monkeypatch.setattr(
        "shutil.disk_usage", lambda _: SimpleNamespace(free=100 * vectors.stat().st_size)
    )
    require_room(vectors, tmp_path)


@pytest.mark.parametrize(("text", "expected"), [("2GB", 2000), ("300 mb", 300), ("1.5gb", 1500)])
def test_budgets_are_sizes_with_a_unit(text: str, expected: float) -> None:
    assert megabytes_of(text) == expected
    with pytest.raises(ConfigError, match="2GB"):
        megabytes_of(text[:-1])


def test_a_mistyped_vectors_file_is_named_and_no_folder_made(tmp_path: Path) -> None:
    options = ["--vectors", str(tmp_path / "typo.npy"), "--out", str(tmp_path / "out")]
    with pytest.raises(ArtifactError, match=r"typo\.npy does not exist; check the path"):
        CliRunner().invoke(app, ["retrieve", "frontier", *options], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_queries_in_the_folder_of_the_table_stays(
    vectors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise ConfigError("measured")

    monkeypatch.setattr("deepsearch_rl.search.frontier.measure_frontier", stop)
    out = tmp_path / "out"
    out.mkdir()
    (out / "queries.npy").write_bytes(b"mine")
    options = ["--vectors", str(vectors), "--out", str(out)]
    with pytest.raises(ConfigError, match="measured"):
        CliRunner().invoke(app, ["retrieve", "frontier", *options], catch_exceptions=False)
    assert [path.name for path in out.iterdir()] == ["queries.npy"]
    assert (out / "queries.npy").read_bytes() == b"mine"


@pytest.mark.slow
def test_the_command_writes_a_table_and_recommends_a_setting(vectors: Path, tmp_path: Path) -> None:
    options = [
        "--vectors",
        str(vectors),
        "--kinds",
        "flat,ivf_pq_refine,ivf_pq",
        "--nlist",
        "4",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, ["retrieve", "frontier", *options, "--memory-budget", "1GB"])
    assert result.exit_code == 0, result.output
    assert "vectors: {kind: " in result.stdout
    with (tmp_path / "frontier.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["kind"] for row in rows].count("ivf_pq_refine") == 18
    [exact] = [row for row in rows if row["kind"] == "flat"]
    assert float(exact["recall_at_5"]) == 1.0
    refined, plain = (
        max(float(row["recall_at_5"]) for row in rows if row["kind"] == kind)
        for kind in ("ivf_pq_refine", "ivf_pq")
    )
    assert refined > plain
    assert float(exact["memory_mb"]) == pytest.approx(vectors.stat().st_size / 1e6, rel=0.01)
    assert all(
        float(row["memory_mb"]) < float(row["disk_mb"])
        for row in rows
        if row["kind"] == "ivf_pq_refine"
    )
    assert not list(tmp_path.glob(".building-*"))
