"""Reinforcement learning from one start model: `python -m stages.rl params.yaml sft`."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.errors import look_up
from deepsearch_rl.files import read_jsonl, sha256_file, sha256_json
from deepsearch_rl.profile import Profile
from deepsearch_rl.records import Question
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig, serve_index
from deepsearch_rl.training.backends.make import open_engine
from deepsearch_rl.training.curves import curve_path, recorded_curve
from deepsearch_rl.training.model_folder import weight_files
from deepsearch_rl.training.rl.loop import train_policy
from deepsearch_rl.training.rl.trainer import RlConfig, RlTask
from stages.entry import run_for_item
from stages.followed import followed


def main(profile: Profile, item: str) -> None:
    """Train from ``models/<profile>/<item>`` into ``models/<profile>/rl_adapter/<item>``."""
    config = profile.section("rl", RlConfig)
    make_trainer = open_engine(config.backend)
    look_up("start", item, config.steps)
    agent = profile.section("agent", AgentConfig)
    seed, start, questions = (
        profile.value("seed"),
        profile.models / item,
        profile.data / "questions" / config.dataset,
    )
    datasets = profile.mapping("datasets", DatasetConfig)
    corpus = look_up("dataset", config.dataset, datasets).corpus
    retrieval = profile.section("retrieval", RetrievalConfig).for_dataset(config.dataset, datasets)
    index, chunks = profile.data / "index" / corpus, profile.data / "chunks" / f"{corpus}.jsonl"
    inputs = [*weight_files(start), index / "manifest.json", questions / "train.jsonl", questions / "dev.jsonl"]
    settings = [config.model_dump(mode="json"), agent.rollout_fingerprint(), retrieval.search_fingerprint()]
    key = sha256_json([seed, *settings, *map(sha256_file, inputs)])
    scratch = profile.work / f"rl-{item}-{key[:12]}"
    with serve_index(index, chunks, retrieval) as url, recorded_curve(curve_path(profile.work, scratch.name)):
        task = RlTask(
            start=start,
            start_name=item,
            train=list(read_jsonl(questions / "train.jsonl", Question)),
            dev=list(read_jsonl(questions / "dev.jsonl", Question)),
            agent=agent,
            retrieval_url=url,
            scratch=scratch,
            seed=seed,
        )
        train_policy(task, config, make_trainer(task, config), profile.models / "rl_adapter" / item)


if __name__ == "__main__":
    run_for_item(followed(main))
