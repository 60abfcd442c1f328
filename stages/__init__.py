"""One thin file per stage of dvc.yaml: params section -> frozen config -> one library call."""

import os

# Set before any stage imports a numeric library: one thread is the fastest setting for models of a few million
# parameters, no library may phone home, and a stage's log is our own lines (a stage shows its progress by
# deepsearch_rl.progress; the libraries' own bars would be written over it). A user's own setting wins.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "LOG_LEVEL": "ERROR",  # ms-swift's
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "WANDB_MODE": "disabled",
    "WANDB_ERROR_REPORTING": "false",  # weave, which ART imports, opens a Sentry session on import otherwise
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MODELSCOPE_DISABLE_TELEMETRY": "1",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
