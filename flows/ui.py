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
from deepsearch_rl.tracking.store import local_store
from flows.leash import Leash
from flows.server import POLL_S, ROOT, Server, free_port, prefect_api, start_server

MLFLOW_PORT = 5000


def start_mlflow(leash: Leash) -> Server:
    """Start MLflow's server over the local store."""
    store, artifacts = local_store(ROOT / "mlruns"), str(ROOT / "mlruns" / "artifacts")
    module = ["mlflow", "server", "--backend-store-uri", store, "--artifacts-destination", artifacts, "--workers", "1"]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true"}
    return start_server(leash, "MLflow", free_port(MLFLOW_PORT), "/health", module, settings)


def main() -> None:
    """Serve until Ctrl-C or SIGTERM; errors end it with status 1 and one paragraph."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.stderr.write("starting Prefect and MLflow ...\n")
    try:
        with Leash() as leash:
            mlflow = start_mlflow(leash)
            with prefect_api() as api:
                mlflow.wait_until_healthy()
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
