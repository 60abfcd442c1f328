"""What ``rl.backend.engine: verl`` needs and is missing: its environment, GPUs, the nodes of a cluster."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from deepsearch_rl.cli.profile_inputs import MissingRequirement
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.train.rl.rl_config import RlConfig, VerlConfig

CLUSTER_TIMEOUT_S = 60.0
SOURCES = Path(__file__).resolve().parents[2]


def missing_for_verl(root: Path, config: RlConfig) -> Iterator[MissingRequirement]:
    """Yield veRL's interpreter where it is missing, or what the nodes of a cluster have otherwise than its head."""
    verl = config.backend.verl
    if verl is None:
        return
    if not (root / verl.python).exists():
        # Not called an interpreter of `python`, which the preflight looks at by itself
        what = f"veRL's interpreter {verl.python} (rl.backend.verl.python)"
        yield MissingRequirement(what, "make verl-environment")
        return

    if verl.address is not None:
        yield from _missing_in_cluster(root, verl, verl.address)


def _missing_in_cluster(root: Path, verl: VerlConfig, address: str) -> Iterator[MissingRequirement]:
    command = [str(root / verl.python), "-m", "deepsearch_rl.train.verl.cluster"]
    command += [address, str(verl.nodes), str(verl.gpus_per_node)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CLUSTER_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        what = f"an answer of the Ray cluster {address} within {CLUSTER_TIMEOUT_S:g} s"
        yield MissingRequirement(what, "`ray status` on its head says how it is")
        return

    problems = result.stdout.splitlines()
    if result.returncode and not problems:
        problems = result.stderr.strip().splitlines()[-1:]
    for problem in problems:
        yield MissingRequirement(f"Ray cluster {address}: {problem}", "docs/training.md")


def missing_gpus(profile: Profile, gpus: int) -> Iterator[MissingRequirement]:
    """Yield the GPUs that veRL shares a model among, where this machine has fewer; a cluster is asked itself."""
    # A project with another graph has other sections
    if "rl" not in profile.values:
        return
    backend = profile.section("rl", RlConfig).backend
    verl = backend.verl
    if verl is None or verl.address is not None or backend.device != "cuda":
        return
    if gpus < verl.gpus_per_node:
        what = f"{verl.gpus_per_node} GPUs (this machine has: {gpus})"
        yield MissingRequirement(
            what, "use a larger machine, or lower rl.backend.verl.gpus_per_node in profile.yaml"
        )
