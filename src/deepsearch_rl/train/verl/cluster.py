"""What a Ray cluster has to have before veRL trains on it; runs in veRL's environment.

    python -m deepsearch_rl.train.verl.cluster ADDRESS NODES GPUS_PER_NODE [RETRIEVAL_URL]

The address ``this`` is this machine, without Ray. Of a cluster every node is asked for its versions
and for a search of the retrieval server. It ends with an error where nodes differ, are too few, or
find no server. The driver's own versions are the expected ones.
"""

import importlib
import importlib.metadata
import json
import platform
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN, bearer, mask_users

PACKAGES = ("verl", "torch", "transformers", "ray", "vllm", "deepsearch-rl")
TIMEOUT_S = 10.0
UNAUTHORIZED = 401
THIS_MACHINE = "this"
# A node's address as ``node``, its GPUs as ``gpus``, an error of the retrieval server as
# ``retrieval``, versions
NodeFacts = Mapping[str, str]


def facts(node: str, gpus: float, retrieval_url: str) -> dict[str, str]:
    """Return the facts of the node that this runs on."""
    result = {"node": node, "gpus": f"{gpus:g}", "python": platform.python_version()}
    for package in PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = "none"

    result["retrieval"] = _search_problem(retrieval_url) if retrieval_url else ""
    return result


def _search_problem(url: str) -> str:
    """Return why a search without queries is not answered; empty where it is."""
    try:
        headers = {"Content-Type": "application/json", **bearer(RETRIEVAL_TOKEN, url)}
        body = json.dumps({"queries": []}).encode()
        request = urllib.request.Request(f"{url}/retrieve", body, headers)
        # No proxy of the node's environment stands between it and the cluster's own network
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        if error.code != UNAUTHORIZED:
            return str(error)
        return f"{error}; export {RETRIEVAL_TOKEN} before `ray start`"
    except (OSError, DeepsearchError) as error:
        return str(error)
    return ""


def problems(
    expected: NodeFacts, nodes: Sequence[NodeFacts], count: int, gpus_per_node: int, url: str
) -> list[str]:
    """Return what keeps veRL from training on these nodes, each with what to do."""
    texts: list[str] = []
    # veRL places as many processes on every node
    able = [node for node in nodes if float(node["gpus"]) >= gpus_per_node]
    if len(able) < count:
        texts.append(
            f"{len(able)} of {len(nodes)} nodes have {gpus_per_node} GPUs (there are "
            f"{', '.join(node['gpus'] for node in nodes)}), and rl.backend.verl.nodes is {count}: start "
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
                f"{node['node']} cannot search at {mask_users(url)} ({node['retrieval']}): "
                f"rl.backend.verl.retrieval_host has to be an address that all nodes reach, with one "
                f"{RETRIEVAL_TOKEN} for all of them"
            )
    return texts


def _this_machine(url: str) -> list[NodeFacts]:
    torch: Any = importlib.import_module("torch")
    return [facts("this machine", torch.cuda.device_count(), url)]


def _ask_nodes(address: str, url: str) -> list[NodeFacts]:
    """Return the facts of every node; raise ConnectionError where there is no cluster."""
    ray: Any = importlib.import_module("ray")
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConnectionError(str(error)) from error

    # Without a core of its own: a busy node answers, too
    ask = ray.remote(num_cpus=0)(facts)
    answers: list[Any] = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        placed = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        gpus = node["Resources"].get("GPU", 0)
        name = node["NodeManagerAddress"]
        answers.append(ask.options(scheduling_strategy=placed).remote(name, gpus, url))
    return ray.get(answers)


def main(arguments: Sequence[str]) -> int:
    """Print the problems of a cluster; return 1 where there are any."""
    address, count, gpus_per_node, *rest = arguments
    url = rest[0] if rest else ""
    try:
        answers = _this_machine(url) if address == THIS_MACHINE else _ask_nodes(address, url)
    except ConnectionError as error:
        sys.stdout.write(f"the Ray cluster {address} is not reached: {error}.\n")
        return 1

    texts = problems(facts("head", 0, ""), answers, int(count), int(gpus_per_node), url)
    for problem in texts:
        sys.stdout.write(f"{problem}.\n")
    return int(bool(texts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
