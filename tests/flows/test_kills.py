"""A few kills of a trivial graph, and what the script would call wrong."""

import fcntl
import time
from pathlib import Path

import pytest
import yaml

from tests.flows.kill_project import EDGES, PARAMS, KillProject, make_project
from tests.flows.kills import VICTIMS, Rehearsal, Site, held_locks, rehearse, torn_files


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_run_survives_kills_of_flow_worker_and_servers() -> None:
    assert rehearse(kills=len(VICTIMS), seed=5, graph="trivial") == []


@pytest.fixture
def project(tmp_path: Path) -> KillProject:
    (tmp_path / "executed.log").touch()
    return KillProject(tmp_path, "tiny")


def record(project: KillProject, *stages: str) -> None:
    entries = {name: {"params": {"params.yaml": {"round": 0}}, "outs": []} for name in stages}
    (project.folder / "dvc.lock").write_text(yaml.safe_dump({"stages": entries}))


def test_a_stage_that_begins_after_dvc_recorded_it_is_wrong(project: KillProject) -> None:
    rehearsal = Rehearsal(Site(project, 0), 1, 0, VICTIMS)
    stages, log = {"chunk", "index"}, project.folder / "executed.log"
    log.write_text(
        f"start {time.time()} chunk\nend {time.time()} chunk\nstart {time.time()} index\n"
    )
    rehearsal.look(stages)
    record(project, "chunk")
    rehearsal.look(stages)
    assert rehearsal.again == []
    with log.open("a") as lines:
        lines.write(f"start {time.time() + 1} index\nstart {time.time() + 1} chunk\n")
    rehearsal.look(stages)
    assert rehearsal.again == ["round 0: chunk"]
    assert rehearsal.executions == {(0, "chunk"): 2, (0, "index"): 2}


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"a": '), ("dvc.lock", 'stages: {a: "b'), ("b.yaml", "a: [1")]
)
def test_half_written_files_are_seen(project: KillProject, name: str, text: str) -> None:
    (project.folder / "whole.yaml").write_text("a: !replace {b: 1}\n")
    assert list(torn_files(project.folder)) == []
    (project.folder / name).write_text(text)
    assert [path.name for path in torn_files(project.folder)] == [name]


def test_held_locks_are_seen(project: KillProject) -> None:
    lock = project.folder / "work" / "tiny" / "run.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        assert list(held_locks(project.folder)) == []
        fcntl.flock(file, fcntl.LOCK_EX)
        assert list(held_locks(project.folder)) == [lock]


@pytest.mark.slow
def test_the_copy_is_a_project_with_the_trivial_graph(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    project = make_project(tmp_path / "project", "trivial", str(tmp_path / "remote"))
    assert project.stage_names() == EDGES.keys()
    assert yaml.safe_load((project.folder / "params.yaml").read_text()) == PARAMS
