"""veRL on a Ray cluster of two nodes, by ``ray job submit``: a worker and a node are lost, and the run goes on.

Both nodes are on this machine, and a node's "GPU" is a process that trains on the CPU.
"""

import contextlib
import functools
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.cli.model import Conversion, Kind, convert
from deepsearch_rl.core.files import read_json, read_jsonl, write_json, write_jsonl
from deepsearch_rl.core.processes import LOOPBACK, ProcessGuard, free_port
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN
from deepsearch_rl.search.build import build_index
from deepsearch_rl.train.curves import TrainingStep
from deepsearch_rl.train.rl.worker import RlRun
from deepsearch_rl.train.verl.engine import CPU_ENVIRONMENT
from deepsearch_rl.train.verl.figures import VerlLine
from tests.chunks import make_chunk
from tests.environment.check_environments import ROOT, interpreter_of
from tests.environment.scripted import QUESTION, retrieval
from tests.policies import CONTEXT_TOKENS
from tests.settings import INDEX, RETRIEVAL
from tests.train.art.tagged import learn_by_heart, tags_agent
from tests.train.verl.verl_settings import verl_config

RAY = interpreter_of("verl").with_name("ray")
STEPS = 4
WAIT_S = 600.0
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        not interpreter_of("verl").exists(), reason="make check-trainers builds veRL's environment"
    ),
]


@functools.cache
def environment_of_ray() -> dict[str, str]:
    ours = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        RETRIEVAL_TOKEN: "token-of-this-test",
        # Ray's own, with which nodes, drivers and jobs reach each other
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    values = {**os.environ, **CPU_ENVIRONMENT, **ours}
    # An empty one would contradict the GPUs that Ray is told of
    values.pop("CUDA_VISIBLE_DEVICES", None)
    return values


@dataclass
class Nodes:
    """A cluster on this machine; a node has one training process. Sockets of its ``folder`` need a short path."""

    folder: str
    logs: Path
    guard: ProcessGuard
    address: str = field(default_factory=lambda: f"{LOOPBACK}:{free_port(0)}")
    dashboard: int = field(default_factory=lambda: free_port(0))
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self) -> None:
        """Start the head, or one more node; return when it is part of the cluster."""
        options = ["--address", self.address]
        if not self.started:
            options = ["--head", "--port", self.address.partition(":")[2]]
            options += ["--include-dashboard", "true", "--dashboard-port", str(self.dashboard)]
            options += ["--temp-dir", self.folder]

        command = [str(RAY), "start", *options, "--node-ip-address", LOOPBACK]
        command += ["--num-cpus", "16", "--num-gpus", "1", "--block"]
        with (self.logs / f"node{len(self.started)}.txt").open("a", encoding="utf-8") as log:
            node = self.guard.start(command, environment=environment_of_ray(), output=log)
        self.started.append(node)
        wait_for(lambda: alive(self.address) == len(self.started), node)

    def lose(self) -> None:
        """Kill the newest node with all that runs on it; return when the cluster knows."""
        node = self.started.pop()
        for process in psutil.Process(node.pid).children(recursive=True):
            if process.name() == "raylet":
                process.kill()
        node.wait(timeout=WAIT_S)
        wait_for(lambda: alive(self.address) == len(self.started), self.started[0])


def alive(address: str) -> int:
    """Return how many nodes a cluster has; 0 where there is none yet."""
    command = [str(RAY), "status", "--address", address]
    status = subprocess.run(
        command, env=environment_of_ray(), capture_output=True, text=True, check=False
    )
    return len(re.findall(r"^ 1 node_", status.stdout, re.MULTILINE))


def wait_for(happened: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Return when a function returns true; fail where the process ends before, or nothing happens for long."""
    until = time.monotonic() + WAIT_S
    while not happened():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)


def submitted(nodes: Nodes, run: Path, log: Path) -> "subprocess.Popen[str]":
    """Submit the stage's run as a job, and follow it."""
    jobs = f"http://{LOOPBACK}:{nodes.dashboard}"
    program = f"cd {ROOT} && exec {sys.executable} -m tests.train.verl.verl_job {run}"
    command = [str(RAY), "job", "submit", "--address", jobs, "--", "bash", "-c", program]
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            command, env=environment_of_ray(), stdout=output, stderr=subprocess.STDOUT, text=True
        )


def training_processes(nodes: str) -> list[psutil.Process]:
    """Return the Ray workers of these nodes that train; their process title says what they do."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            title = " ".join(process.cmdline())
            parent = process.parent()
            if title.startswith("ray::WorkerDict") and parent and nodes in str(parent.cmdline()):
                found.append(process)
    return found


def written_run(folder: Path, policy: Path, smoke: Profile, address: str) -> Path:
    """Write what the stage would hand to its training process."""
    agent = tags_agent(smoke, folder)
    with retrieval() as url:
        learn_by_heart(policy, agent, url, folder / "start", steps=25)

    chunks = folder / "chunks.jsonl"
    write_jsonl(chunks, [make_chunk("Silent Harbor\nMary Moss directed it.", "c-0", "c")])
    build_index(chunks, folder / "index", INDEX, seed=0)
    for split in ("train", "dev"):
        write_jsonl(folder / "questions" / f"{split}.jsonl", [QUESTION])

    config = verl_config(
        verl={"address": address, "nodes": 2, "retrieval_host": LOOPBACK, "agent_workers": 2},
        groups_per_step=4,
        group_size=4,
        steps={"base": STEPS},
        epochs=99.0,
        rewards={"f1": 1.0, "answer_format": 0.5, "short_think": 0.1},
        dev={"every": 1, "questions": 1, "samples": 1, "temperature": 0.7},
        max_sequence_tokens=CONTEXT_TOKENS,
        lora=None,
    )
    setting = RolloutSetting(
        questions=folder / "questions",
        index=folder / "index",
        chunks=chunks,
        agent=agent,
        retrieval=RETRIEVAL,
        seed=0,
    )
    run = RlRun(
        start_name="base",
        start=folder / "start",
        weights="digest",
        setting=setting,
        rl=config,
        scratch=folder / "scratch",
        curve=folder / "curve.jsonl",
        output=folder / "out",
    )
    (folder / "scratch").mkdir()
    write_json(folder / "run.json", run.model_dump(mode="json"))
    return folder / "run.json"


def test_a_lost_worker_and_a_lost_node_end_in_resumes_from_the_last_checkpoint(
    policy_folder: Path, smoke: Profile, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "scratch" / "verl" / "checkpoints"
    newest = checkpoints / "latest_checkpointed_iteration.txt"

    def saved(step: int) -> bool:
        return newest.is_file() and newest.read_text() == str(step)

    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        ProcessGuard() as guard,
    ):
        nodes = Nodes(folder, tmp_path, guard)
        nodes.start()
        nodes.start()
        run = written_run(tmp_path, policy_folder, smoke, nodes.address)

        with submitted(nodes, run, tmp_path / "first.txt") as job:
            wait_for(lambda: saved(1), job)
            workers = training_processes(folder)
            assert len(workers) == 2
            workers[0].kill()
            assert job.wait(timeout=WAIT_S) != 0
        assert "go on from its last checkpoint" in (tmp_path / "first.txt").read_text()

        with submitted(nodes, run, tmp_path / "second.txt") as job:
            wait_for(lambda: saved(2), job)
            nodes.lose()
            assert job.wait(timeout=WAIT_S) != 0

        nodes.start()
        with submitted(nodes, run, tmp_path / "third.txt") as job:
            assert job.wait(timeout=WAIT_S) == 0, (tmp_path / "third.txt").read_text()[-4000:]

    logs = sorted((tmp_path / "scratch/verl/logs").glob("*.jsonl"))
    assert [path.name for path in logs] == ["000.jsonl", "001.jsonl", "002.jsonl"]
    first, second, third = map(steps_of, logs)
    assert max(first) < STEPS
    assert min(second) >= 1
    assert min(third) >= 2
    lines = list(read_jsonl(tmp_path / "out" / "train_log.jsonl", TrainingStep))
    assert [line.step for line in lines] == list(range(STEPS + 1))
    assert lines[-1].metrics["mismatch_mean"] < 1e-3
    assert read_json(tmp_path / "out" / "manifest.json")["backend"] == "verl"
    assert (tmp_path / "out" / "model.safetensors").is_file()

    # Both shards of the checkpoint, by the command for checkpoints of one's own
    actor = (
        checkpoints / f"global_step_{read_json(tmp_path / 'out' / 'manifest.json')['best_step']}"
    )
    conversion = Conversion(Kind.VERL_FSDP, actor / "actor", str(interpreter_of("verl")))
    convert(conversion, tmp_path / "start", tmp_path / "converted")
    published = load_file(tmp_path / "out" / "model.safetensors")
    converted = load_file(tmp_path / "converted" / "model.safetensors")
    assert published.keys() == converted.keys()
    assert all(torch.equal(weight, converted[name]) for name, weight in published.items())


def steps_of(log: Path) -> set[int]:
    return {line.step for line in read_jsonl(log, VerlLine)}
