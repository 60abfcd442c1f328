"""Prefect's and MLflow's user interfaces on loopback until Ctrl-C.

    python -m flows.ui

Prefect keeps its database under .prefect/ (``PREFECT_HOME``), MLflow its own under mlruns/. While this runs,
`make flow` sends its runs to the server started here.
"""

import signal
import sys
import time
from types import FrameType

from deepsearch_rl.errors import EndpointError
from deepsearch_rl.processes import ProcessGuard, Server, free_port
from deepsearch_rl.tracking.store import local_store
from flows.server import ROOT, START_TIMEOUT_S, prefect_api, start_server

MLFLOW_PORT = 5000
POLL_S = 0.5


def start_mlflow(guard: ProcessGuard) -> Server:
    """Start MLflow's server over the local store."""
    store, artifacts = local_store(ROOT / "mlruns"), str(ROOT / "mlruns" / "artifacts")
    module = ["mlflow", "server", "--backend-store-uri", store, "--artifacts-destination", artifacts, "--workers", "1"]
    return start_server(guard, "MLflow", free_port(MLFLOW_PORT), "/health", module, {})


def main() -> None:
    """Serve until Ctrl-C or SIGTERM; errors end it with status 1 and one paragraph."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.stderr.write("starting Prefect and MLflow ...\n")
    try:
        with ProcessGuard() as guard:
            mlflow = start_mlflow(guard)
            with prefect_api() as api:
                mlflow.wait_until_healthy(START_TIMEOUT_S)
                sys.stdout.write(f"Prefect {api.removesuffix('/api')}\nMLflow  {mlflow.url}\nCtrl-C stops them.\n")
                sys.stdout.flush()
                while True:
                    mlflow.raise_if_ended()
                    time.sleep(POLL_S)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
    except EndpointError as error:
        sys.exit(f"error: {error}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
