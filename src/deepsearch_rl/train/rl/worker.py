"""The process in which RL trains, under a watchdog (stage ``rl``).

    python -m deepsearch_rl.train.rl.worker PIPE   (train_watched starts it, an RlRun on standard input)

Torch and the engine are imported in that process alone; the watching one stays small.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from deepsearch_rl.agent.collect import RolloutSetting
from deepsearch_rl.core.errors import UnavailableError, look_up
from deepsearch_rl.core.files import read_jsonl, sha256_file, sha256_json
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.core.profile import Profile
from deepsearch_rl.core.records import Question, Record
from deepsearch_rl.core.redaction import RETRIEVAL_TOKEN
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.curves import recorded_curve
from deepsearch_rl.train.model_folder import weight_files
from deepsearch_rl.train.rl.rl_config import BackendConfig, RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask, RlTrainer
from deepsearch_rl.train.rl.watchdog import check_server, run_watched, watch


def require_engine(backend: BackendConfig) -> None:
    """Raise UnavailableError if ``rl.backend`` names hardware, packages or programs that are not here.

    Nothing that trains is imported, so that the watching process can ask.
    """
    if backend.verl:
        if not Path(backend.verl.python).exists():
            raise UnavailableError(
                f"rl.backend.verl.python is {backend.verl.python!r}, and there is no such program: make "
                "veRL's environment from profiles/gpu/requirements/verl.txt (profiles/gpu/README.md), "
                "or name another one."
            )
    elif backend.service == "unsloth":
        require_gpu("rl with service: unsloth", packages=["unsloth", "bitsandbytes", "trl"])
        require_art_vllm()
    elif backend.device == "cuda":
        require_gpu("rl with device: cuda")


def require_art_vllm() -> None:
    """Raise UnavailableError unless ART finds its own vLLM, which it would install at a run's first step.

    `make art-vllm` installs it before (``tools/art_runtime.py``).
    """
    from art import vllm_runtime  # noqa: PLC0415 - for service: unsloth alone

    manifest = vllm_runtime._load_bundled_manifest(vllm_runtime._bundled_runtime_dir())
    root = vllm_runtime.get_vllm_runtime_cache_root().resolve()
    digest = vllm_runtime._manifest_hash(manifest)

    if not vllm_runtime._validate_managed_runtime(
        root / digest, cache_root=root, manifest=manifest, manifest_hash=digest
    ):
        raise UnavailableError(
            f"ART's vLLM is not installed below {root}; `make art-vllm` installs it."
        )


def train_by_engine(task: RlTask, config: RlConfig, output: Path) -> None:
    """Train a task by ``rl.backend``; write the best adapter or weights, its log and its manifest to ``output``.

    ``art`` rolls out and updates where the project's own loop says so; ``verl`` owns its loop.
    """
    if config.backend.engine == "verl":
        from deepsearch_rl.train.verl.engine import train_with_verl  # noqa: PLC0415 - transformers

        train_with_verl(task, config, output)
        return

    from deepsearch_rl.train.rl.loop import train_policy  # noqa: PLC0415 - transformers

    train_policy(task, config, make_trainer(task, config), output)


def make_trainer(task: RlTask, config: RlConfig) -> RlTrainer:
    """Return the trainer that ``rl.backend.service`` names, for the project's own loop."""
    if config.backend.service == "unsloth":
        from deepsearch_rl.train.art.unsloth import make_unsloth_trainer  # noqa: PLC0415 - trl

        return make_unsloth_trainer(task, config)

    from deepsearch_rl.train.art.service import make_own_trainer  # noqa: PLC0415 - torch and ART

    return make_own_trainer(task, config)


class RlRun(Record):
    """What a training process is told: settings and paths of one run; ``weights`` is a digest of those in ``start``."""

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
    command = [sys.executable, "-m", "deepsearch_rl.train.rl.worker"]
    watch(f"rl@{run.start_name}", command, run.model_dump_json(), run.rl.watchdog, run.scratch)


def train(run: RlRun) -> None:
    """Train in this process, with a retrieval server; raises as :func:`train_by_engine`."""
    require_engine(run.rl.backend)
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
        train_by_engine(task, run.rl, run.output)


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
