"""Choose SFT's checkpoint by rollouts on dev questions: the end of the stage `sft` where `sft.checkpoint` is `dev`."""

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.errors import look_up
from deepsearch_rl.profile import Profile
from deepsearch_rl.retrieval.quality import DatasetConfig
from deepsearch_rl.retrieval.server.launch import RetrievalConfig
from deepsearch_rl.serving.launch import ServingConfig
from deepsearch_rl.training.sft import SftConfig
from deepsearch_rl.training.sft_dev import DevRollouts, choose_on_dev
from stages.entry import run
from stages.followed import followed


def main(profile: Profile) -> None:
    """Write ``models/<profile>/sft_adapter/`` again, with one of its checkpoints."""
    plan, datasets = profile.section("sft", SftConfig).dev, profile.mapping("datasets", DatasetConfig)
    corpus = look_up("dataset", plan.dataset, datasets).corpus
    rollouts = DevRollouts(
        plan=plan,
        questions=profile.data / "questions" / plan.dataset / "dev.jsonl",
        index=profile.data / "index" / corpus,
        chunks=profile.data / "chunks" / f"{corpus}.jsonl",
        agent=profile.section("agent", AgentConfig),
        retrieval=profile.section("retrieval", RetrievalConfig).for_dataset(plan.dataset, datasets),
        serving=profile.section("serving", ServingConfig),
        seed=profile.value("seed"),
    )
    choose_on_dev(rollouts, profile.models / "sft_adapter", profile.work)


if __name__ == "__main__":
    run(followed(main))
