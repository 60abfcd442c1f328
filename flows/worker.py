"""Workers: machines that take runs from the UI, from schedules and from other machines.

    python -m flows.worker deploy            (`make deploy`)
    python -m flows.worker start POOL        (`make worker POOL=gpu`)
    python -m flows.worker service POOL      (`make worker-service POOL=gpu`)

Every profile has the deployment ``reproduce/<profile>`` in the pool of its kind of machine: ``gpu``
if it requires a GPU, else ``cpu``. A deployment names no folder: the worker that takes a run has it
work in the worker's own clone.
"""

import argparse
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType
from prefect.workers.process import ProcessWorker

from deepsearch_rl.cli.doctor import MissingRequirement, Requirements, inspect
from deepsearch_rl.core.errors import ConfigError, UnavailableError, look_up
from deepsearch_rl.core.processes import ProcessGuard, stream_lines
from deepsearch_rl.core.profile import find_profile, profile_names
from flows import reproduce
from flows.command_line import one_paragraph_errors
from flows.recovery import crashed_runs_again
from flows.reproduce import PROJECT_VARIABLE
from flows.server import ROOT, prefect_api

FLOW: Any = reproduce.reproduce

# Schedule of every deployment, UTC; paused until somebody resumes it
NIGHTLY = "0 2 * * *"
WAITS_FOR_WORKER = (
    "Paused until its first worker: `make worker POOL={pool}` on a machine of this kind."
)
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


def pools(root: Path) -> dict[str, str]:
    """Return the work pool of every profile of the project at ``root``."""
    pool_of: dict[str, str] = {}
    for name in profile_names(root):
        needs = find_profile(root, name).section("requires", Requirements)
        pool_of[name] = "gpu" if needs.gpu_memory_gib else "cpu"

    return pool_of


def deploy(root: Path) -> Mapping[str, str]:
    """Register work pools and deployments at the server, or bring them up to date, and return the pool of each profile.

    Schedules and pools that are there stay as they are. A new pool is paused until its first
    worker, which opens it (:func:`_open_pool`): Prefect's page would show it as not ready, in red,
    on every laptop without a GPU.
    """
    pool_of = pools(root)
    with get_client(sync_client=True) as client:
        for pool in sorted(set(pool_of.values())):
            template = ProcessWorker.get_default_base_job_template()
            waiting = WorkPoolCreate(
                name=pool,
                type="process",
                base_job_template=template,
                is_paused=True,
                description=WAITS_FOR_WORKER.format(pool=pool),
            )
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(waiting)

        for profile, pool in pool_of.items():
            name = f"{FLOW.name}/{profile}"
            schedules: list[Any] = [Cron(NIGHTLY, timezone="UTC", active=False, slug="nightly")]

            # Those of the server win: somebody may have switched one on, or made another
            with suppress(ObjectNotFound):
                fields = set(DeploymentScheduleCreate.model_fields)
                present = client.read_deployment_by_name(name).schedules
                schedules = []
                for schedule in present:
                    values = schedule.model_dump(include=fields)
                    schedules.append(DeploymentScheduleCreate(**values))

            deployment = FLOW.to_deployment(
                profile,
                parameters={"profile": profile},
                description=f"The graph of profile {profile}, through DVC.",
                schedules=schedules,
                work_pool_name=pool,
                entrypoint_type=EntrypointType.MODULE_PATH,
            )
            deployment.apply()

    return pool_of


def _open_pool(pool: str) -> None:
    """Let a pool that has waited for its first worker take runs; one that somebody paused stays paused."""
    with get_client(sync_client=True) as client:
        if client.read_work_pool(pool).description == WAITS_FOR_WORKER.format(pool=pool):
            client.update_work_pool(pool, WorkPoolUpdate(is_paused=False, description=""))


def missing_requirements(root: Path, pool: str) -> Mapping[str, tuple[MissingRequirement, ...]]:
    """Return what this machine is missing for each profile of a pool; raise as :func:`_profiles_of`."""
    profiles = _profiles_of(root, pool)
    missing = inspect(root).missing
    return {profile: missing[profile] for profile in profiles}


def _profiles_of(root: Path, pool: str) -> list[str]:
    """Return the profiles of a pool; raise UnknownNameError where none belongs to such a pool."""
    profiles: dict[str, list[str]] = {}
    for profile, name in pools(root).items():
        profiles.setdefault(name, []).append(profile)
    return look_up("pool", pool, profiles)


def start(root: Path, pool: str, limit: int = 1) -> None:
    """Check the machine, register deployments, and take runs of a pool until Ctrl-C, no more than ``limit`` at once.

    What was killed is continued. Without a limit Prefect gives a worker all runs that are due: they
    would wait here while other machines are free.

    Raises:
        ConfigError: the project cannot run now (:mod:`deepsearch_rl.core.project_state`).
        UnavailableError: no profile of the pool can run here.
        EndpointError: Prefect's server does not answer.
    """
    missing = missing_requirements(root, pool)
    for profile, requirements in missing.items():
        state = "; ".join(f"{item.what} ({item.fix})" for item in requirements) or "ready"
        sys.stderr.write(f"{profile}: {state}\n")

    if all(missing.values()):
        raise UnavailableError(
            f"no profile of the pool {pool} can run on this machine; `deepsearch doctor` says more."
        )

    name = f"{socket.gethostname()}-{root.name}"

    with prefect_api() as api, ProcessGuard() as guard, crashed_runs_again(pool, name):
        deploy(root)
        _open_pool(pool)
        command = [
            sys.executable,
            "-m",
            "prefect",
            "worker",
            "start",
            "--pool",
            pool,
            "--type",
            "process",
        ]
        command += ["--name", name, "--limit", str(limit)]
        # Prefect starts a run in a folder of its own, from which the flow has to be importable
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {
            **os.environ,
            PROJECT_VARIABLE: str(root),
            "PYTHONPATH": path,
            "PREFECT_API_URL": api,
        }
        worker = guard.start(command, folder=root, environment=environment)
        stream_lines(worker, lambda line: sys.stderr.write(f"{line}\n"))
        if worker.returncode:
            raise ConfigError(f"the worker ended with status {worker.returncode}.")


def write_service(root: Path, pool: str, limit: int) -> Path:
    """Write a systemd unit of the user that keeps a worker of ``limit`` runs at once running, and return its path.

    Raise UnknownNameError where there is no such pool.
    """
    _profiles_of(root, pool)
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    unit = configuration / "systemd" / "user" / f"deepsearch-worker-{pool}.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    make = shutil.which("make") or "make"
    text = UNIT.format(pool=pool, root=root, make=make, limit=limit)
    # systemd takes a single % for one of its own values
    unit.write_text(text.replace("%", "%%"), encoding="utf-8")
    return unit


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["deploy", "start", "service"])
    parser.add_argument(
        "pool", nargs="?", default="cpu", help="kind of machine: cpu (the default) or gpu"
    )
    parser.add_argument(
        "--limit", type=int, default=1, help="how many runs a worker works on at once"
    )
    arguments = parser.parse_args()

    if arguments.limit < 1:
        parser.error("--limit (LIMIT of make) must be 1 or more")

    with one_paragraph_errors("stopped"):
        if arguments.action == "start":
            start(ROOT, arguments.pool, arguments.limit)
        elif arguments.action == "service":
            unit = write_service(ROOT, arguments.pool, arguments.limit)
            enable = f"systemctl --user enable --now {unit.name}; loginctl enable-linger keeps it after you log out"
            sys.stdout.write(f"{unit} written; switch it on: {enable}\n")
        else:
            with prefect_api():
                for profile, pool in deploy(ROOT).items():
                    sys.stdout.write(f"{FLOW.name}/{profile} in pool {pool}\n")


if __name__ == "__main__":
    main()
