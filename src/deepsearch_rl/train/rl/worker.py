"""The process in which RL trains, under a watchdog (stage ``rl``).

    python -m deepsearch_rl.train.rl.worker PIPE   (train_watched starts it, an RlRun on standard input)

Torch and the engine are imported in that process alone; the watching one stays small.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.errors import look_up
from deepsearch_rl.core.files import read_jsonl, sha256_file, sha256_json, write_json
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.curves import recorded_curve
from deepsearch_rl.train.model_folder import weight_files
from deepsearch_rl.train.rl.engines import open_engine
from deepsearch_rl.train.rl.heartbeat import check_server, run_watched
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask
from deepsearch_rl.train.rl.watchdog import watch

RUN_FILE = "run.json"


class RlRun(Record):
    """All that a training process is told: the settings and paths of one run of the stage ``rl``.

    It is kept as ``run.json`` in ``scratch``. ``weights`` is a digest of those in ``start``.
    """

    start_name: str
    start: Path
    weights: str
    setting: RolloutSetting
    rl: RlConfig
    scratch: Path
    curve: Path
    output: Path


def rl_run(profile: Profile, config: RlConfig, item: str, scratch: Path, curve: Path) -> RlRun:
    """Return the run of a profile and its section ``rl`` from the start ``item`` in a scratch folder, with its curve.

    Raises UnknownNameError for an unknown start or data set, ArtifactError where an input is
    missing.
    """
    look_up("start", item, config.steps)
    start = profile.models / item
    return RlRun(
        start_name=item,
        start=start,
        weights=sha256_json([sha256_file(path) for path in weight_files(start)]),
        setting=RolloutSetting.of(profile, config.dataset),
        rl=config,
        scratch=scratch,
        curve=curve,
        output=profile.models / "rl_adapter" / item,
    )


def train_watched(run: RlRun) -> None:
    """Train in a process of its own, which is started again where it hangs or dies; raises as ``watch``."""
    write_json(run.scratch / RUN_FILE, run.model_dump(mode="json"))
    command = [sys.executable, "-m", "deepsearch_rl.train.rl.worker"]
    watch(f"rl@{run.start_name}", command, run.model_dump_json(), run.rl.watchdog, run.scratch)


def train(run: RlRun) -> None:
    """Train in this process, with a retrieval server."""
    train_task = open_engine(run.rl.backend)
    setting = run.setting

    with _retrieval_server(run) as url, recorded_curve(run.curve):
        task = RlTask(
            start=run.start,
            start_name=run.start_name,
            weights=run.weights,
            train=list(read_jsonl(setting.split("train"), Question)),
            dev=list(read_jsonl(setting.split("dev"), Question)),
            agent=setting.agent,
            retrieval_url=url,
            scratch=run.scratch,
            seed=setting.seed,
        )
        check_server("the retrieval server", f"{url}/healthz")
        train_task(task, run.rl, run.output)


def _retrieval_server(run: RlRun) -> AbstractContextManager[str]:
    """Serve the index of a run, with a token where other nodes reach it."""
    setting = run.setting
    verl = run.rl.backend.verl
    if verl is None or verl.retrieval_host is None:
        return serve_index(setting.index, setting.chunks, setting.retrieval)

    return serve_index(
        setting.index,
        setting.chunks,
        setting.retrieval,
        host=verl.retrieval_host,
        port=verl.retrieval_port,
        token_variable=RETRIEVAL_TOKEN,
    )


if __name__ == "__main__":
    work = RlRun.model_validate_json(sys.stdin.buffer.read())
    sys.exit(run_watched(lambda: train(work), int(sys.argv[1])))
