"""What a Ray cluster has to have before veRL trains on it; runs in veRL's environment.

    python -m deepsearch_rl.training.backends.verl.cluster ADDRESS NODES GPUS_PER_NODE RETRIEVAL_URL

asks every node for its versions and for an answer of the retrieval server, and ends with an error
where nodes differ, are too few, or reach no server. The driver's own versions are the expected ones.
"""

import importlib
import importlib.metadata
import platform
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

PACKAGES = ("verl", "torch", "transformers", "ray", "vllm", "deepsearch-rl")
TIMEOUT_S = 10.0
NodeFacts = Mapping[str, str]
"""A node's address as ``node``, its GPUs as ``gpus``, an error of the retrieval server as ``retrieval``, versions."""


def facts(node: str, gpus: float, retrieval_url: str) -> dict[str, str]:
    """Return the facts of the node that this runs on."""
    result = {"node": node, "gpus": f"{gpus:g}", "python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "none"

    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"{retrieval_url}/healthz", timeout=TIMEOUT_S).close()
        result["retrieval"] = ""
    except OSError as error:
        result["retrieval"] = str(error)
    return result


def problems(
    expected: NodeFacts, nodes: Sequence[NodeFacts], count: int, gpus_per_node: int, url: str
) -> list[str]:
    """Return what keeps veRL from training on these nodes, each with what to do."""
    texts: list[str] = []
    able = [node for node in nodes if float(node["gpus"]) >= gpus_per_node]
    if len(able) < count:
        texts.append(
            f"{len(able)} of {len(nodes)} nodes have {gpus_per_node} GPUs, and rl.backend.verl.nodes is {count}: start "
            "`ray start --address=HEAD:6379` on more, or lower nodes or gpus_per_node"
        )

    for node in nodes:
        for name in ("python", *PACKAGES):
            if node[name] != expected[name]:
                texts.append(
                    f"{node['node']} has {name} {node[name]}, and the head {expected[name]}: make its environment from "
                    "the same file"
                )
        if node["retrieval"]:
            texts.append(
                f"{node['node']} does not reach the retrieval server {url} ({node['retrieval']}): serve it at an "
                "address of the cluster's network"
            )
    return texts


def main(arguments: Sequence[str]) -> int:
    """Print the problems of a cluster; return 1 where there are any."""
    address, count, gpus_per_node, url = arguments
    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    ray.init(address=address, log_to_driver=False)
    ask = ray.remote(num_cpus=0)(facts)
    alive = [node for node in ray.nodes() if node["Alive"]]
    answers: list[Any] = []

    for node in alive:
        placed = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        gpus = node["Resources"].get("GPU", 0)
        name = node["NodeManagerAddress"]
        answers.append(ask.options(scheduling_strategy=placed).remote(name, gpus, url))

    texts = problems(facts("head", 0, url), ray.get(answers), int(count), int(gpus_per_node), url)
    for problem in texts:
        sys.stdout.write(f"{problem}.\n")
    return int(bool(texts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
