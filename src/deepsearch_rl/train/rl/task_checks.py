"""What RL requires of its task and its params, checked before anything starts."""

from pathlib import Path

from deepsearch_rl.agent.config import FUNCTION_CALLING, SEARCH_TAGS, AgentConfig
from deepsearch_rl.chat.chat_format import (
    OPEN_THINK,
    ChatFormat,
    ConversationError,
    load_chat_format,
)
from deepsearch_rl.chat.chat_messages import (
    RETRIEVE_TOOL,
    RETRIEVE_TOOL_NAME,
    chat_messages,
    search_call,
)
from deepsearch_rl.chat.prompts import TrainedWith, require_trained_with, served_with
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.model_config import require_context
from deepsearch_rl.core.records import Message
from deepsearch_rl.serve.fit import Room, require_fit
from deepsearch_rl.train.rewards import PolicyText, ThinkLength, require_scores
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.rl_trainer import RlTask

_THOUGHT = "<think>one</think>\n"
_QUERY = "the query of a probe"
_PASSAGE = "the passage of a probe"
_SEARCH = "<search>two</search>\n\n<information>three</information>\n\n"


def check_task(task: RlTask, config: RlConfig) -> tuple[TrainedWith, PolicyText]:
    """Return what the policy is served with, and how rewards read its texts, if the task can be trained on.

    Raises:
        ConfigError: params have no number of steps for this start, more of them than ``rl.epochs``,
            rollouts longer than what is trained on or than the model reads, an architecture that the
            engine does not serve, too little memory for its slots, a reward that never changes, a prompt of the
            other protocol, or thoughts that are not sent back; or the start was trained with a
            different prompt, tool or chat template, or its template cannot show the rollouts.
        ArtifactError: a split without a question.
    """
    if task.start_name not in config.steps:
        raise ConfigError(f"rl.steps has no entry for the start {task.start_name!r}; add one.")
    served = served_with(task.start, task.agent.prompt_digests())
    require_trained_with(task.start, served, f"the agent (agent.prompt: {task.agent.prompt})")

    for split, questions in (("train", task.train), ("dev", task.dev)):
        if not questions:
            raise ArtifactError(
                f"the {split} split of rl.dataset {config.dataset!r} has no question."
            )

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

    chat_format = load_chat_format(task.start)
    require_template(chat_format, task.agent, task.start)
    policy = policy_text(chat_format, config.think_length)
    _require_thoughts_sent_back(task, policy)
    require_context(task.start, {"agent.context_tokens": task.agent.context_tokens})
    if config.backend.device == "cpu":
        fields = ("rl.sampler.slots", "agent.context_tokens", "rl.dtype")
        room = Room(config.sampler.slots, task.agent.context_tokens, config.dtype, 1, *fields)
        require_fit(task.start, room)
    return served, policy


def _require_few_steps(task: RlTask, config: RlConfig) -> None:
    per_step = config.groups_per_step
    questions = config.steps[task.start_name] * per_step
    limit = config.epochs * len(task.train)

    if questions > limit:
        raise ConfigError(
            f"rl.steps.{task.start_name} x rl.groups_per_step are {questions} "
            f"questions, more than rl.epochs = {config.epochs:g} over the {len(task.train)} train "
            f"questions of {config.dataset}; lower the steps to {int(limit // per_step)} or raise "
            "rl.epochs."
        )


def require_template(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    """Raise ConfigError where the model's chat template cannot show what the agent does in its protocol.

    A template without tools drops calls and results silently. A text in Search-R1's tags is one
    message that grows and has to stay as it was written; templates of thinking models, such as
    Qwen3's, split a message at its thoughts and rewrite it. A server cannot continue such a message:
    it refuses every turn after the first search.
    """
    if agent.protocol == SEARCH_TAGS:
        _require_tags_kept(chat_format, agent, folder)
    else:
        _require_tools_shown(chat_format, folder)


def _require_tags_kept(chat_format: ChatFormat, agent: AgentConfig, folder: Path) -> None:
    text = _THOUGHT + _SEARCH if OPEN_THINK in agent.load_instruction() else _SEARCH
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]
    try:
        chat_format.prompt_ids(messages, None, continue_last=True)
    except ConversationError as error:
        raise ConfigError(
            "the agent searches by tags, in one message that grows (agent.protocol: search_tags), and the chat "
            f"template of {folder} does not keep such a message as it was written, so that no turn after the first "
            f"search could be asked for ({error.__cause__}). Set agent.protocol: function_calling and a prompt of it, "
            "or start from a model whose template writes messages as they are, as Qwen2.5's does."
        ) from error


def _require_tools_shown(chat_format: ChatFormat, folder: Path) -> None:
    call = search_call(_QUERY, 1)
    messages = [
        Message(role="user", content="?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content=_PASSAGE, tool_call_id=call.id),
    ]
    subject = f"the agent searches by tool calls, and the chat template of {folder}"
    remedy = (
        "Set agent.protocol: search_tags with the prompt search_tags, which need no tool role, or "
        "start from a model whose template has one."
    )
    try:
        tokens = chat_format.prompt_ids(chat_messages(messages), [RETRIEVE_TOOL])
    except ConversationError as error:
        raise ConfigError(f"{subject} refuses them ({error.__cause__}). {remedy}") from error

    # Through the tokens: a template may be fine and its tokenizer lose what it writes
    text = chat_format.tokenizer.decode(tokens)
    parts = {"tools": RETRIEVE_TOOL_NAME, "calls": _QUERY, "their results": _PASSAGE}
    missing = [name for name, part in parts.items() if part not in text]
    if missing:
        raise ConfigError(f"{subject} leaves out {', '.join(missing)}. {remedy}")


def _require_thoughts_sent_back(task: RlTask, policy: PolicyText) -> None:
    # Search-R1's tags send all text back
    in_calls = task.agent.protocol == FUNCTION_CALLING
    if in_calls and policy.opens_thought and not task.agent.history_reasoning:
        raise ConfigError(
            f"{task.start} thinks before every turn, and rl trains a rollout as one conversation "
            "with all its thoughts; set agent.history_reasoning: true, so that this is what the "
            "model is served."
        )


def policy_text(chat_format: ChatFormat, think_length: ThinkLength) -> PolicyText:
    """Return how to read the texts of a policy with this tokenizer and template."""
    tokenizer = chat_format.tokenizer

    def count_tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return PolicyText(count_tokens, think_length, chat_format.prompt_opens_thought())
