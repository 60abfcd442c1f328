"""A run of the stage ``rl`` by veRL on a running Ray cluster, as a job that is submitted to it.

python -m tests.train.verl.verl_job RUN_JSON
"""

import sys
from pathlib import Path

from deepsearch_rl.train.rl.worker import RlRun, train

if __name__ == "__main__":
    train(RlRun.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8")))
