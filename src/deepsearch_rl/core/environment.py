"""The environment variables of every program of the project: keys of `.env`, no telemetry, no proxy for loopback.

    prepare_environment(threads=1)

`stages`, `flows` and the command `deepsearch` call it before they import a library that reads one
of the variables. A variable that the shell has set always wins.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

ENV_FILE = Path(".env")
# The names that `.env` sets, so that the redaction of logs knows their values (core/redaction.py)
ENV_FILE_NAMES = "DEEPSEARCH_ENV_FILE_NAMES"

DEFAULTS = {
    # Nothing phones home
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MODELSCOPE_DISABLE_TELEMETRY": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "disabled",
    # Stages show progress bars of their own
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "LOG_LEVEL": "ERROR",  # of ms-swift
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    # vLLM would compile FlashInfer's sampler at its start, which needs nvcc and ninja; no request
    # here asks for top-k or top-p
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # MLflow's job runners take 2 GB, and nothing here uses them
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def prepare_environment(threads: int | None = None) -> None:
    """Set what is missing in this process's environment, for it and for all that it starts.

    Args:
        threads: threads of numeric libraries; None leaves the choice to them. One thread is the
            fastest setting for a model of a few million parameters, and starves everything larger.
    """
    values = {name: value for name, value in dotenv_values(ENV_FILE).items() if value is not None}
    if values:
        os.environ[ENV_FILE_NAMES] = ",".join(values)

    if threads is not None:
        values["OMP_NUM_THREADS"] = str(threads)
        values["TOKENIZERS_PARALLELISM"] = "false" if threads == 1 else "true"

    for name, value in (DEFAULTS | values).items():
        os.environ.setdefault(name, value)

    _spare_loopback()


def _spare_loopback() -> None:
    """Ask no proxy for this machine's own addresses: HTTP libraries do, unless NO_PROXY names them."""
    proxies = ("http_proxy", "https_proxy", "all_proxy")
    if not any(name.lower() in proxies for name in os.environ):
        return

    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "*" not in hosts:
            os.environ[name] = ",".join(dict.fromkeys([*hosts, *LOOPBACK]))
