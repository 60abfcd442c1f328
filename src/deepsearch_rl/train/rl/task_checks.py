"""What a training by RL requires of its task and its params, checked before anything starts."""

from deepsearch_rl.agent.config import FUNCTION_CALLING
from deepsearch_rl.chat.prompts import TrainedWith, require_trained_with
from deepsearch_rl.core.errors import ArtifactError, ConfigError, look_up
from deepsearch_rl.train.rewards import PolicyText, require_scores
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask


def require_task(task: RlTask, config: RlConfig, served: TrainedWith) -> None:
    """Raise the errors that params, questions or what is ``served`` give.

    :func:`~deepsearch_rl.train.rl.loop.train_policy` lists them.
    """
    if task.start_name not in config.steps:
        raise ConfigError(f"rl.steps has no entry for the start {task.start_name!r}; add one.")
    require_trained_with(task.start, served, f"the agent (agent.prompt: {task.agent.prompt})")

    for split, questions in (("train", task.train), ("dev", task.dev)):
        if not questions:
            raise ArtifactError(
                f"the {split} split of rl.dataset {config.dataset!r} has no question."
            )

    types = {question.metadata.question_type: question for question in task.train}
    for name in config.type_shares:
        look_up("question type in rl.type_shares", name, types)

    _require_few_steps(task, config)
    # Characters in place of tokens: the policy's tokenizer is not loaded yet
    require_scores(config.rewards, task.train[0], PolicyText(len, config.think_length))

    if task.agent.context_tokens > config.max_sequence_tokens:
        raise ConfigError(
            f"a rollout can have agent.context_tokens = {task.agent.context_tokens} tokens, and rl "
            f"trains on rl.max_sequence_tokens = {config.max_sequence_tokens} of them at most: the "
            f"longest rollouts, up to {task.agent.context_tokens - config.max_sequence_tokens} tokens "
            "too long, would be left out, whatever their reward. Set the two to the same number."
        )


def _require_few_steps(task: RlTask, config: RlConfig) -> None:
    """Raise ConfigError where the steps can take more questions than ``rl.epochs``."""
    per_step = config.groups_per_step * (1 + config.max_refills)
    questions = config.steps[task.start_name] * per_step
    limit = config.epochs * len(task.train)

    if questions > limit:
        raise ConfigError(
            f"rl.steps.{task.start_name} x rl.groups_per_step x (1 + rl.max_refills) are {questions} "
            f"questions, more than rl.epochs = {config.epochs:g} over the {len(task.train)} train "
            f"questions of {config.dataset}; lower the steps to {int(limit // per_step)} or raise "
            "rl.epochs."
        )


def require_thoughts_sent_back(task: RlTask, *, opens_thought: bool) -> None:
    """Raise ConfigError where the policy thinks before every turn and is not served these thoughts.

    Search-R1's tags send all text back.
    """
    in_calls = task.agent.protocol == FUNCTION_CALLING
    if in_calls and opens_thought and not task.agent.history_reasoning:
        raise ConfigError(
            f"{task.start} thinks before every turn, and rl trains a rollout as one conversation "
            "with all its thoughts; set agent.history_reasoning: true, so that this is what the "
            "model is served."
        )
