"""Training rows from trajectories, every row proved: the tokens trained are the tokens served.

``filter.flatten`` must fit ``agent.history_reasoning``, so that a model is trained on the prompts
that it will be served. Two renderings of every row must agree, token by token:

- ms-swift's training encoding of the row: the tokens and the loss mask that ``swift sft`` computes;
- the chat template in the model's tokenizer, which every server and the RL trainer use: all tokens
  of the conversation, and the prompt of every trained turn as the server computes it from the
  agent's request.

Only the tokens that the model must write are trained: each target turn from the first token after
its prompt through ``<|im_end|>``, and the newline after it, which ms-swift trains as part of its
suffix and no server waits for. Where the prompt itself opens the thought (``<think>`` and a
newline, as for Qwen3's Thinking models), the tag is not trained.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from pydantic import JsonValue
from swift.model import get_processor
from swift.template import get_template

from deepsearch_rl.agent.config import AgentConfig, require_made_with, require_prompts
from deepsearch_rl.chat.chat_format import load_chat_format
from deepsearch_rl.chat.chat_messages import (
    RETRIEVE_TOOL,
    chat_messages,
    has_unclosed_thought,
    split_thought,
)
from deepsearch_rl.core.answers import score_rollout
from deepsearch_rl.core.errors import CheckFailedError, ConfigError
from deepsearch_rl.core.files import read_distinct, write_json, write_jsonl
from deepsearch_rl.core.model_config import require_context
from deepsearch_rl.core.progress import track
from deepsearch_rl.core.records import (
    FilterReport,
    Question,
    TokenCounts,
    Trajectory,
)
from deepsearch_rl.train.filters import (
    FilterConfig,
    apply_predicates,
    best_per_question,
    find_predicates,
)
from deepsearch_rl.train.swift_rows import SwiftRow, row_targets, swift_row

# Label of a token without loss
IGNORED = -100
# ms-swift refuses longer conversations; the limit on rows applies after the proof
NO_LIMIT = 1 << 24
PER_QUESTION = "per_question"
TOO_LONG = "too_long"
# A row would hold the closing tag that the model never wrote
UNCLOSED_THOUGHT = "unclosed_thought"


def build_training_set(
    config: FilterConfig,
    agent: AgentConfig,
    *,
    trajectories: Path,
    questions: Path,
    model: Path,
    rows: Path,
    report: Path,
) -> int:
    """Write the training ``rows`` and the ``report`` of what was dropped; return the number of rows.

    ``agent`` is the one that the model will be served by. Raise ArtifactError where an input is
    missing; ConfigError where rows would hold prompts that the agent never sends, or trajectories
    hold no tool calls; CheckFailedError where nothing is left to train on, or a row's tokens are
    not the server's.
    """
    require_made_with(trajectories, agent)
    require_context(
        model,
        {"agent.context_tokens": agent.context_tokens, "filter.max_tokens": config.max_tokens},
    )
    answers = list(read_distinct(trajectories, Trajectory))
    selection, dropped = apply_predicates(
        answers, read_distinct(questions, Question), find_predicates(config.predicates)
    )
    selection = _without_unclosed_thoughts(selection, dropped)
    if config.per_question:
        best = best_per_question(selection, config.per_question)
        dropped[PER_QUESTION] = len(selection) - len(best)
        selection = best

    # Before the proof, whose error would name a token and not the setting
    for trajectory in selection:
        _require_served_prompts(trajectory, config.flatten, agent)
    require_prompts(selection, agent)

    proof = TokenProof(
        model, config.model_type, config.template, config.agent_template, config.loss_scale
    )
    pairs: list[tuple[Trajectory, int | None]] = []
    for trajectory in selection:
        for target in row_targets(trajectory, config.flatten):
            pairs.append((trajectory, target))

    proved_rows: list[_ProvedRow] = []

    for trajectory, target in track(pairs, "filter", len(pairs), "rows"):
        row = swift_row(trajectory, target)
        tokens = proof.check(trajectory, row, target)
        if tokens <= config.max_tokens:
            proved_rows.append(_ProvedRow(trajectory, row, tokens))

    dropped[TOO_LONG] = len(pairs) - len(proved_rows)
    if not proved_rows:
        raise CheckFailedError(f"no trajectory is left to train on; dropped were {dropped}.")
    write_jsonl(rows, (proved.row for proved in proved_rows))
    write_json(report, _report(answers, dropped, proved_rows).model_dump(mode="json"))
    return len(proved_rows)


def _without_unclosed_thoughts(
    trajectories: list[Trajectory], dropped: dict[str, int]
) -> list[Trajectory]:
    """Return the trajectories whose thoughts are all closed, and count the others in ``dropped``, if there are any."""
    closed = [each for each in trajectories if not has_unclosed_thought(each.messages)]
    if len(closed) < len(trajectories):
        dropped[UNCLOSED_THOUGHT] = len(trajectories) - len(closed)
    return closed


def _require_served_prompts(trajectory: Trajectory, flatten: bool, agent: AgentConfig) -> None:
    """Refuse a trajectory whose rows would hold prompts that the agent never sends."""
    if trajectory.protocol != "function_calling":
        raise ConfigError(
            f"trajectory {trajectory.id} is of the protocol {trajectory.protocol!r}; ms-swift's "
            "rows hold tool calls. Collect the teacher's answers with agent.protocol: "
            "function_calling."
        )

    if flatten != agent.history_reasoning:
        return

    # The last turn is in no history
    earlier_turns = trajectory.turns[:-1]
    if any(split_thought(turn).reasoning is not None for turn in earlier_turns):
        raise ConfigError(
            f"filter.flatten and agent.history_reasoning are both {str(flatten).lower()}, but "
            f"trajectory {trajectory.id} holds reasoning: its rows would be prompts that the agent "
            "never sends. Set filter.flatten: true to train on a history without reasoning, or "
            "agent.history_reasoning: true to send it back; not both."
        )


class _ProvedRow(NamedTuple):
    trajectory: Trajectory
    row: SwiftRow
    tokens: int


def _report(
    trajectories: list[Trajectory], dropped: dict[str, int], rows: list[_ProvedRow]
) -> FilterReport:
    types = sorted({trajectory.question_type for trajectory in trajectories})
    # With the types of which no row is left
    rows_by_type = dict.fromkeys(types, 0)
    tokens: list[int] = []
    # By trajectory: a trajectory of many rows has its searches once
    searches: dict[str, int] = {}

    for row in rows:
        rows_by_type[row.trajectory.question_type] += 1
        tokens.append(row.tokens)
        searches[row.trajectory.id] = len(row.trajectory.retrievals)

    return FilterReport(
        trajectories=len(trajectories),
        f1=round(fmean(score_rollout(trajectory).f1 for trajectory in trajectories), 4),
        dropped=dropped,
        rows=len(rows),
        rows_by_type=rows_by_type,
        tokens=TokenCounts(mean=round(fmean(tokens), 1), max=max(tokens)),
        searches=round(fmean(searches.values()), 3),
    )


class TokenProof:
    """Checks rows against one Hugging Face folder with tokenizer, chat template and config.

    The names are ms-swift's: of the architecture, the chat template, the rendering of tools and the
    tokens that carry loss.
    """

    def __init__(
        self, folder: Path, model_type: str, template: str, agent_template: str, loss_scale: str
    ) -> None:
        self._chat_format = load_chat_format(folder)
        self._names = (
            f"model_type {model_type}, template {template}, {agent_template}, {loss_scale}"
        )
        self._training = get_template(
            get_processor(str(folder), model_type=model_type),
            template_type=template,
            agent_template=agent_template,
            loss_scale=loss_scale,
            # As in `swift sft`: a row holds exactly what must be seen of earlier turns
            preserve_thinking=True,
            max_length=NO_LIMIT,
        )
        self._training.set_mode("train")

    def check(self, trajectory: Trajectory, row: SwiftRow, target: int | None = None) -> int:
        """Prove the row of a trajectory (``swift_row`` with the same target) and return its length in tokens.

        ``target`` is the position of the one message to train, after a prompt without reasoning;
        None: every assistant turn, each after a prompt with reasoning. Raise CheckFailedError where
        tokens or loss mask differ.
        """
        messages = chat_messages(trajectory.messages, with_reasoning=True)
        targets: list[int] = []
        if target is None:
            for place, message in enumerate(messages):
                if message["role"] == "assistant":
                    targets.append(place)
        else:
            # The conversation as the server sees it, through the trained turn
            messages = [*chat_messages(trajectory.messages[:target]), messages[target]]
            targets = [target]

        swift_messages = [dict(message) for message in row.messages]
        encoded = self._training.encode({"tools": row.tools, "messages": swift_messages})
        tokens = self._render(messages)
        self._compare(trajectory.id, "training tokens", encoded["input_ids"], tokens)
        labels = [IGNORED] * len(tokens)

        for turn in targets:
            prompt = self._chat_format.prompt_ids(messages[:turn], [RETRIEVE_TOOL])
            # A prompt may be other tokens by itself than as the beginning of a longer text
            self._compare(trajectory.id, "tokens before a turn", tokens[: len(prompt)], prompt)
            end = len(self._render(messages[: turn + 1]))
            labels[len(prompt) : end] = tokens[len(prompt) : end]

        self._compare(trajectory.id, "trained tokens", encoded["labels"], labels)
        return len(tokens)

    def _render(self, messages: list[dict[str, JsonValue]]) -> list[int]:
        tokenizer = self._chat_format.tokenizer
        text = tokenizer.apply_chat_template(messages, tools=[RETRIEVE_TOOL], tokenize=False)  # pyright: ignore
        return tokenizer.encode(str(text), add_special_tokens=False)

    def _compare(self, id_: str, what: str, swift: Sequence[int], tokenizer: Sequence[int]) -> None:
        if list(swift) == list(tokenizer):
            return

        # Where one is the beginning of the other, they differ at its end
        place = min(len(swift), len(tokenizer))
        for number, (ours, theirs) in enumerate(zip(swift, tokenizer, strict=False)):
            if ours != theirs:
                place = number
                break

        raise CheckFailedError(
            f"trajectory {id_}: {what} differ at token {place}: ms-swift ({self._names}) has "
            f"{self._text(swift, place)}, the model's chat template "
            f"{self._text(tokenizer, place)}. Choose the ms-swift template that fits the model "
            "(filter.template, filter.agent_template, filter.loss_scale, and the same in sft); if the turn lacks the "
            "reasoning that the template wants of every turn, drop such trajectories "
            "(filter.predicates: reasoned)."
        )

    def _text(self, tokens: Sequence[int], place: int) -> str:
        if tokens[place : place + 1] == [IGNORED]:
            return "no trained token"
        trained = [token for token in tokens[place : place + 8] if token != IGNORED]
        return repr(self._chat_format.tokenizer.decode(trained))
