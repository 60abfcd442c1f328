import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect import get_client
from prefect.settings import PREFECT_API_URL


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_prefect_deploys_the_flow_for_each_pool_with_paused_schedules(root: Path) -> None:
    environment = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}

    def prefect(*arguments: str) -> None:
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)

    for pool in ("tiny", "gpu"):
        prefect("work-pool", "create", "--type", "process", pool)
    prefect("deploy", "--all")
    with get_client(sync_client=True) as client:
        deployments = {deployment.name: deployment for deployment in client.read_deployments()}
    assert set(deployments) == {"tiny", "gpu"}
    for name, deployment in deployments.items():
        assert deployment.work_pool_name == name
        assert deployment.parameters["profile"] == name
        assert [schedule.active for schedule in deployment.schedules] == [False]
