import json
from concurrent.futures import Future
from pathlib import Path

import pytest
import yaml

from deepsearch_rl.core.errors import ConfigError, UnknownNameError
from deepsearch_rl.core.stage import TIMINGS
from flows.graph import Stage, longest_path_s, read_graph, read_targets, select
from flows.schedule import Start, expected_seconds, run_graph
from tests.conftest import ROOT
from tests.flows.conftest import MakeProject

STAGES = {
    "last": {"cmd": "cat b@*.txt > last.txt", "deps": ["b@x.txt", "b@y.txt"], "outs": ["last.txt"]},
    "b": {
        "matrix": {"start": ["x", "y"]},
        "cmd": "cp a.txt b@${item.start}.txt",
        "deps": ["a.txt"],
        "outs": ["b@${item.start}.txt"],
    },
    "a": {"cmd": "echo a > a.txt", "outs": ["a.txt"]},
    "alone": {"cmd": "echo alone > alone.txt", "outs": ["alone.txt"]},
}


@pytest.mark.slow
def test_the_graph_is_dvcs_with_upstream_stages_first(make_project: MakeProject) -> None:
    graph = read_graph(make_project(STAGES), "tiny")
    assert {name: set(stage.upstream) for name, stage in graph.items()} == {
        "a": set(),
        "b@x": {"a"},
        "b@y": {"a"},
        "last": {"b@x", "b@y"},
        "alone": set(),
    }
    names = list(graph)
    assert names.index("a") < names.index("b@x") < names.index("last")
    assert all(stage.changed for stage in graph.values())


def test_targets_bring_what_they_need_and_a_family_is_all_its_stages(
    make_project: MakeProject,
) -> None:
    graph = read_graph(make_project(STAGES), "tiny")
    assert set(select(graph, ("b",))) == {"a", "b@x", "b@y"}
    assert set(select(graph, ("b@y", "alone"))) == {"a", "b@y", "alone"}
    assert select(graph, ()) == graph


def test_unknown_profiles_and_stages_are_refused_with_the_nearest_names(
    make_project: MakeProject,
) -> None:
    root = make_project(STAGES)
    with pytest.raises(UnknownNameError, match="Did you mean 'tiny'"):
        read_graph(root, "tini")
    with pytest.raises(UnknownNameError, match="Did you mean 'last'"):
        select(read_graph(root, "tiny"), ("lost",))


def test_a_whole_graph_that_would_stop_on_its_way_is_refused_before_dvc_reads_it(
    make_project: MakeProject,
) -> None:
    root = make_project(STAGES)
    params = yaml.safe_load((ROOT / "profiles/multihoprag/params.yaml").read_text())
    (root / "params.yaml").write_text(yaml.safe_dump({**params, "profile": "tiny"}))
    with pytest.raises(ConfigError, match="trains no model"):
        read_targets(root, "tiny", ())
    assert set(read_targets(root, "tiny", ("alone",))) == {"alone"}


def test_a_graph_that_dvc_refuses_is_a_config_error(make_project: MakeProject) -> None:
    root = make_project({"a": {"cmd": "echo ${missing}", "outs": ["a.txt"]}})
    with pytest.raises(ConfigError, match="missing"):
        read_graph(root, "tiny")


def test_the_longest_way_to_the_end_counts_the_last_runs_seconds(make_project: MakeProject) -> None:
    graph = read_graph(make_project(STAGES), "tiny")
    seconds = {"a": 2.0, "b@x": 30.0, "b@y": 5.0, "last": 3.0, "alone": 10.0}
    assert longest_path_s(graph, seconds) == {
        "a": 35.0,
        "b@x": 33.0,
        "b@y": 8.0,
        "last": 3.0,
        "alone": 10.0,
    }
    assert longest_path_s(graph, {"a": 2.0, "last": 4.0})["b@x"] == 7.0, (
        "an unknown stage counts as the mean"
    )
    assert longest_path_s(graph, {})["a"] == 3.0


def test_outputs_are_paths_from_the_projects_root(make_project: MakeProject) -> None:
    assert read_graph(make_project(STAGES), "tiny")["b@x"].outputs == ("b@x.txt",)


def test_the_stage_with_the_longest_way_to_the_end_starts_first_and_others_run_in_its_background() -> (
    None
):
    upstream = {"d": frozenset({"c"})}
    graph = {
        name: Stage(name, name, upstream.get(name, frozenset()), (), changed=True)
        for name in "abcd"
    }
    started: dict[str, Start] = {}

    def start(stage: Stage, _: list[Future[str]], how: Start) -> Future[str]:
        started[stage.name] = how
        future: Future[str] = Future()
        future.set_result("Completed")
        return future

    expected_s = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 9.0}
    run_graph(graph, start, Future.result, frozenset(), expected_s, workers=2)
    assert list(started)[:2] == ["c", "b"]
    assert set(started) == set(graph)
    assert started["c"] == Start(unchanged=False, in_background=False)
    assert started["b"] == Start(unchanged=False, in_background=True)
    # It starts beside b, whose way to the end is shorter
    assert started["d"] == Start(unchanged=False, in_background=False)


def test_a_stage_that_never_ran_is_expected_to_take_what_the_plan_says(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_bytes(Path("params.yaml").read_bytes())
    stages = {"prepare_model", "sft", "chunk"}
    planned = expected_seconds(tmp_path, "tiny", stages)
    assert planned["prepare_model"] > planned["sft"] > planned["chunk"] > 0

    run = {"profile": "tiny", "stage": "sft", "seconds": 7.5, "started": 1.0, "peak_mb": 0}
    timings = tmp_path / TIMINGS
    timings.parent.mkdir(parents=True)
    timings.write_text(json.dumps(run) + "\n", encoding="utf-8")
    expected_s = expected_seconds(tmp_path, "tiny", stages)
    assert expected_s["sft"] == 7.5
    assert expected_s.keys() == planned.keys()
    # Nothing has to be planned where every stage ran
    assert expected_seconds(tmp_path, "tiny", {"sft"}) == {"sft": 7.5}

    # Without a section that the plan reads
    (tmp_path / "params.yaml").write_text("seed: 0\n", encoding="utf-8")
    assert expected_seconds(tmp_path, "tiny", stages) == {"sft": 7.5}
