"""The search agent as an environment: the same prompts, limits, notices, searches and rewards for every trainer.

The project's own loop asks a model server for turns. A trainer that owns its loop asks its own
sampler and hands each turn to an :class:`Episode` instead:

    async with open_environment(Path("params.yaml"), model=Path("models/tiny/sft"), retrieval_url=URL) as environment:
        episode = environment.open(question)
        while episode.outcome is None:
            token_ids = sample(episode.prompt_ids, episode.max_tokens)
            await episode.step(token_ids)
        train_on(episode.row, episode.outcome.reward)

Both loops step through :class:`~deepsearch_rl.agent.steps.RolloutSteps` and search with the same
tool. So an episode ends for the same reason with the same trajectory as a rollout in which the
model wrote the same turns, and it records the tokens that the model server would have read
(:mod:`deepsearch_rl.train.rl.tokens`).

One limit of the agent has no meaning here: ``agent.timeout_s``, a question's time, which the
trainer's batches decide. ``agent.call_timeout_s`` ends a search that hangs.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import open_protocol
from deepsearch_rl.agent.search_tool import RolloutSearch, SearchTool, open_session, search_over_mcp
from deepsearch_rl.agent.steps import RolloutSteps
from deepsearch_rl.agent.transcript import Observer, RolloutKey, Transcript
from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.profile import load_profile
from deepsearch_rl.core.records import Question
from deepsearch_rl.environment.episode import Episode, RewardSetting
from deepsearch_rl.train.rl.rl_config import RlConfig
from deepsearch_rl.train.rl.task_checks import policy_text, require_template
from deepsearch_rl.train.rl.tokens import TokenRecord, end_ids


@dataclass(eq=False)
class SearchEnvironment:
    """Opens questions for a model whose turns somebody else samples.

    ``chat_format`` is the model's tokenizer and template, ``end_ids`` are the tokens that end its
    turns, ``search`` finds passages, ``rewards`` score an episode. Trajectories name ``model_name``
    and ``temperature``. ``observer`` is called with every message of every episode.
    """

    config: AgentConfig
    chat_format: ChatFormat
    end_ids: tuple[int, ...]
    search: RolloutSearch
    rewards: RewardSetting
    _: KW_ONLY
    model_name: str = "policy"
    temperature: float = 1.0
    observer: Observer | None = None

    def __post_init__(self) -> None:
        opens_thought = self.rewards.policy.opens_thought
        self._protocol = open_protocol(self.config, begins_in_thought=opens_thought)
        self._tool = SearchTool(self.search, self.config, self._protocol)
        self._key = RolloutKey(
            self.model_name, self.config.prompt_title, self.temperature, self.config.protocol
        )

    def open(self, question: Question, sample: int = 0) -> Episode:
        """Begin an episode; it is over at once where the question does not fit the context."""
        transcript = Transcript(question, self._protocol.opening(question.question), self.observer)
        steps = RolloutSteps(self._protocol, self.config, transcript)
        tokens = TokenRecord(self.chat_format, self._protocol, self.end_ids)
        return Episode(steps, self._tool, tokens, self.rewards, self._key, sample)

    def prompts(self, questions: Sequence[Question]) -> list[list[dict[str, str]]]:
        """Return the messages that open each question.

        Raises ConfigError where there is no question, and where questions leave no room for an
        answer, which it counts and names.
        """
        if not questions:
            raise ConfigError("there is no question to train on: the file of questions is empty.")

        prompts: list[list[dict[str, str]]] = []
        too_long: list[str] = []

        for question in questions:
            episode = self.open(question)
            if episode.outcome is not None:
                too_long.append(question.id)
            prompts.append(
                [{"role": message.role, "content": message.content} for message in episode.messages]
            )

        # All at once: a trainer would find them one by one, hours apart
        if too_long:
            counts = f"{len(too_long)} of {len(questions)} questions ({', '.join(too_long[:3])})"
            raise ConfigError(
                f"{counts} do not fit agent.context_tokens: leave them out, or raise it."
            )

        return prompts


def load_policy_format(model: Path) -> ChatFormat:
    """Return tokenizer and template of a model folder.

    Raise ArtifactError where there is no such folder, whose name transformers would look up on a
    hub, or where it holds no tokenizer or no chat template.
    """
    if not model.is_dir():
        raise ArtifactError(
            f"there is no model folder {model}; name the folder of the start model."
        )
    try:
        return load_chat_format(model)
    except (OSError, ValueError) as error:
        problem = str(error).strip().splitlines()[0]
        raise ArtifactError(
            f"the tokenizer of {model} cannot be loaded ({problem}); name the folder of a model with its tokenizer."
        ) from error


def reward_setting(config: RlConfig, chat_format: ChatFormat) -> RewardSetting:
    """Return the rewards of section ``rl`` for a policy with this tokenizer and template."""
    return RewardSetting(config.rewards, policy_text(chat_format, config.think_length))


@asynccontextmanager
async def open_environment(
    params: Path, *, model: Path, retrieval_url: str
) -> AsyncIterator[SearchEnvironment]:
    """Open the environment that a params file describes, for a model folder and a running retrieval server.

    It reads the sections ``agent`` and ``rl`` (rewards, think_length, temperature). Raises
    ConfigError for their values and for a chat template that shows no tools or rewrites a text in
    tags, ArtifactError as :func:`load_policy_format`, EndpointError where the server does not
    answer.
    """
    profile = load_profile(params)
    agent = profile.section("agent", AgentConfig)
    training = profile.section("rl", RlConfig)
    chat_format = load_policy_format(model)
    require_template(chat_format, agent, model)
    rewards = reward_setting(training, chat_format)

    async with open_session(retrieval_url, agent.call_timeout_s) as session:
        search = partial(search_over_mcp, session, 0.5)
        yield SearchEnvironment(
            agent,
            chat_format,
            end_ids(model, chat_format),
            search,
            rewards,
            model_name=model.name,
            temperature=training.temperature,
        )
