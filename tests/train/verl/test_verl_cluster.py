"""What a Ray cluster has to have: compared without Ray."""

import pytest
from pydantic import ValidationError

from deepsearch_rl.train.rl.rl_config import VerlConfig
from deepsearch_rl.train.verl.cluster import (
    PACKAGES,
    THIS_MACHINE,
    facts,
    main,
    problems,
)
from deepsearch_rl.train.verl.overrides import hydra_overrides
from tests.train.verl.verl_settings import RUN, verl_config

URL = "http://10.0.0.1:8099"
HEAD = {"python": "3.11.9", **dict.fromkeys(PACKAGES, "1.0")}


def node(**changes: str) -> dict[str, str]:
    return {"node": "10.0.0.2", "gpus": "8", "retrieval": "", **HEAD, **changes}


def test_nodes_that_are_alike_and_reach_the_server_have_no_problem() -> None:
    assert problems(HEAD, [node(), node()], 2, 8, URL) == []


def test_each_problem_names_the_node_and_what_to_do() -> None:
    nodes = [node(), node(node="10.0.0.3", torch="2.9", gpus="4", retrieval="refused")]
    few, version, unreachable = problems(HEAD, nodes, 2, 8, URL)
    assert "1 of 2 nodes have 8 GPUs" in few
    assert "10.0.0.3 has torch 2.9, and the head 1.0" in version
    assert f"10.0.0.3 cannot search at {URL} (refused)" in unreachable


def test_a_node_tells_its_versions_and_whether_it_reaches_the_server() -> None:
    found = facts("here", 0, "http://127.0.0.1:1")
    assert found["torch"] != "none"
    assert "refused" in found["retrieval"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nodes": 2}, "nodes: 2 needs the address"),
        ({"nodes": 2, "address": "auto"}, "nodes: 2 needs retrieval_host"),
        ({"retrieval_host": "0.0.0.0"}, "no address that another node can ask"),
        ({"retrieval_host": "::"}, "no address that another node can ask"),
        ({"tensor_parallel": 3}, "tensor_parallel: 3 does not divide gpus_per_node: 8"),
    ],
)
def test_machines_that_cannot_train_together_are_refused(
    changes: dict[str, object], named: str
) -> None:
    values = {"python": "python", "gpus_per_node": 8, "rollout": "vllm"}
    with pytest.raises(ValidationError, match=named):
        VerlConfig.model_validate(values | changes)


def test_a_clusters_nodes_have_said_how_many_cores_and_gpus_they_have() -> None:
    here = hydra_overrides(verl_config(), RUN)
    cluster = {"address": "10.0.0.1:6379", "nodes": 2, "retrieval_host": "10.0.0.1"}
    there = hydra_overrides(verl_config(verl=cluster), RUN)
    assert any(".ray_init.num_gpus=" in override for override in here)
    assert not any(".ray_init.num_" in override for override in there)
    assert "+ray_kwargs.ray_init.address='10.0.0.1:6379'" in there
    assert "trainer.nnodes=2" in there


def test_this_machine_is_asked_for_its_gpus_and_a_search(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([THIS_MACHINE, "1", "64", "http://127.0.0.1:1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "0 of 1 nodes have 64 GPUs" in lines[0]
    assert "this machine cannot search at http://127.0.0.1:1" in lines[1]
    assert main([THIS_MACHINE, "1", "0"]) == 0
