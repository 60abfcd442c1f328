"""Workers: machines that take flow runs from the UI, from schedules and from other machines.

    python -m flows.worker deploy            (`make deploy`)
    python -m flows.worker start POOL        (`make worker POOL=gpu`)
    python -m flows.worker service POOL      (`make worker-service POOL=gpu`)

Every profile has the deployment ``reproduce/<profile>`` in the work pool of its kind of machine:
``gpu`` if it requires a GPU, else ``cpu``. A worker runs it in its own clone of the project.
"""

import argparse
import os
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    WorkPoolCreate,
)
from prefect.client.schemas.filters import FlowRunFilter
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.states import Crashed
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker

from deepsearch_rl.core.errors import CommandError
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.core.profile import find_profile, profile_names
from flows import ROOT, reproduce
from flows.driver import interrupt_on_sigterm, one_paragraph_errors
from flows.servers import prefect_server

POOLS = ("cpu", "gpu")
WORKER_LABEL = "prefect.worker.name"
UNIT = """[Unit]
Description=deepsearch-rl worker of pool {pool}
After=network-online.target

[Service]
WorkingDirectory={root}
ExecStart="{make}" worker POOL={pool} LIMIT={limit}
Restart=on-failure
RestartSec=10

[Install]
WantedBy=default.target
"""


def deploy() -> dict[str, str]:
    """Register work pools and deployments at Prefect's server, and return the pool of each profile."""
    flow: Any = reproduce.reproduce
    pool_of: dict[str, str] = {}
    with get_client(sync_client=True) as client:
        for pool in POOLS:
            template = ProcessWorker.get_default_base_job_template()
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(
                    WorkPoolCreate(name=pool, type="process", base_job_template=template)
                )

        schedules = {
            profile: present_schedules(client, f"{flow.name}/{profile}")
            for profile in profile_names(ROOT)
        }

    for profile in profile_names(ROOT):
        needs_gpu = find_profile(ROOT, profile).values["requires"].get("gpu_memory_gib")
        pool_of[profile] = "gpu" if needs_gpu else "cpu"
        deployment = flow.to_deployment(
            profile,
            parameters={"profile": profile},
            description=f"The graph of profile {profile}, with DVC.",
            schedules=schedules[profile],
            work_pool_name=pool_of[profile],
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        deployment.apply()
    return pool_of


def present_schedules(client: SyncPrefectClient, name: str) -> list[DeploymentScheduleCreate]:
    """Return the schedules that a deployment has at the server, which registering it again would remove."""
    with suppress(ObjectNotFound):
        fields = set(DeploymentScheduleCreate.model_fields)
        schedules = client.read_deployment_by_name(name).schedules
        return [DeploymentScheduleCreate(**item.model_dump(include=fields)) for item in schedules]
    return []


def start(pool: str, limit: int = 1) -> None:
    """Register deployments, and take runs of a pool until Ctrl-C, no more than ``limit`` at once.

    Raises:
        EndpointError: Prefect's server does not answer.
        CommandError: the worker ended.
    """
    name = f"{socket.gethostname()}-{ROOT.name}"
    with prefect_server(), ProcessGuard() as guard:
        deploy()
        with get_client(sync_client=True) as client:
            mark_lost_runs(client, name)

        command = ["prefect", "worker", "start", "--type", "process", "--pool", pool]
        command += ["--name", name, "--limit", str(limit)]
        # Prefect starts a run in a temporary folder, from which the flow has to be importable
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PREFECT_API_URL": PREFECT_API_URL.value() or "",
        }
        worker = guard.start(
            [sys.executable, "-P", "-m", *command], folder=ROOT, environment=environment
        )
        stream_lines(worker, lambda line: sys.stderr.write(f"{line}\n"))
        raise CommandError(f"the worker ended with status {worker.returncode}.")


def mark_lost_runs(client: SyncPrefectClient, worker: str) -> None:
    """Mark the runs that a worker of this name left behind when it was killed as crashed."""
    active = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "PENDING"]}}})
    for run in client.read_flow_runs(flow_run_filter=active):
        if run.labels.get(WORKER_LABEL) == worker:
            client.set_flow_run_state(run.id, Crashed(message="Its worker was killed."), force=True)


def write_service(pool: str, limit: int) -> Path:
    """Write a systemd unit of the user that keeps a worker of ``limit`` runs at once running, and return its path."""
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    unit = configuration / "systemd" / "user" / f"deepsearch-worker-{pool}.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    make = shutil.which("make") or "make"
    text = UNIT.format(pool=pool, root=ROOT, make=make, limit=limit)
    # systemd takes a single % for one of its own values
    unit.write_text(text.replace("%", "%%"), encoding="utf-8")
    return unit


def main() -> None:
    """Command line of `make deploy`, `make worker` and `make worker-service`."""
    parser = argparse.ArgumentParser(description="Deployments and workers of Prefect.")
    parser.add_argument("action", choices=["deploy", "start", "service"])
    parser.add_argument("pool", nargs="?", default="cpu", choices=POOLS, help="kind of machine")
    parser.add_argument("--limit", type=int, default=1, help="runs at once")
    arguments = parser.parse_args()

    interrupt_on_sigterm()
    with one_paragraph_errors():
        if arguments.action == "start":
            start(arguments.pool, arguments.limit)
        elif arguments.action == "service":
            unit = write_service(arguments.pool, arguments.limit)
            sys.stdout.write(
                f"{unit} written; switch it on with `systemctl --user enable --now {unit.name}`, and "
                "keep it after you log out with `loginctl enable-linger`.\n"
            )
        else:
            with prefect_server():
                for profile, pool in deploy().items():
                    sys.stdout.write(f"reproduce/{profile} in pool {pool}\n")


if __name__ == "__main__":
    main()
