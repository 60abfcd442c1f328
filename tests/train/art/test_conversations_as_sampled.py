"""Whole conversations through the parsers that the profiles name: what is trained on is what the policy read and wrote.

Or the rollout is left out, and its reason named.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import art
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deepsearch_rl.agent.protocols import FunctionCalling
from deepsearch_rl.chat.chat_format import ChatFormat, assistant_message, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL, chat_messages
from deepsearch_rl.chat.completion import Completion
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.train.art.captures import NOT_AS_SAMPLED, CapturedRow, captured_row
from deepsearch_rl.train.rl.rl_trainer import Rollout
from deepsearch_rl.train.rl.rollouts import rollout_metrics
from deepsearch_rl.train.rl.tokens import TokenRow
from tests.conftest import ROOT
from tests.train.art.captured import captured_choice, recorded
from tests.train.test_thinking import FolderOf, folder_of
from tests.vllm_parsers import hermes, hermes_call, qwen3_and_hermes

__all__ = ["folder_of"]

# Server, and how the model's template treats thoughts (tests/train/test_thinking.py)
SERVERS = [
    ("hermes", "plain"),
    ("qwen3 and hermes", "hybrid"),
    ("qwen3 and hermes", "thinking"),
    ("qwen3 and hermes", "keeping"),
    ("own", "plain"),
    ("own", "hybrid"),
    ("own", "thinking"),
]
END = "<|im_end|>"


def parser_of(server: str, kind: str, chat_format: ChatFormat) -> Callable[[str], dict[str, Any]]:
    special = [str(token) for token in chat_format.tokenizer.all_special_tokens]
    in_thought = kind in ("thinking", "keeping")
    parsers: dict[str, Callable[[str], dict[str, Any]]] = {
        "hermes": hermes,
        "qwen3 and hermes": lambda text: qwen3_and_hermes(text, special),
        "own": lambda text: assistant_message(text, in_thought=in_thought),
    }
    return parsers[server]


class Conversation(NamedTuple):
    """A rollout as ART captures it and as the agent records it, with the tokens of every turn and of its prompt."""

    captured: art.Trajectory
    trajectory: Trajectory
    prompts: list[list[int]]
    turns: list[list[int]]

    def comes_back(self) -> bool:
        """Whether every prompt begins with the prompt before it and what the model wrote after that."""
        for number, turn in enumerate(self.turns[:-1]):
            before = self.prompts[number] + turn
            if self.prompts[number + 1][: len(before)] != before:
                return False
        return True


def converse(
    texts: list[str], passages: list[str], server: str, kind: str, chat_format: ChatFormat
) -> Conversation:
    """Have a model write these texts, until one calls no tool; every call brings the next passages."""
    parse = parser_of(server, kind, chat_format)
    begins_in_thought = server == "own" and kind in ("thinking", "keeping")
    protocol = FunctionCalling(
        "Search.", history_reasoning=True, begins_in_thought=begins_in_thought
    )
    messages = protocol.opening("Who?")
    captured = art.Trajectory(messages_and_choices=list(chat_messages(messages)))  # type: ignore[arg-type]
    prompts: list[list[int]] = []
    turns: list[list[int]] = []

    for text in texts:
        chat = chat_messages(messages, with_reasoning=True)
        prompts.append(chat_format.prompt_ids(chat, [RETRIEVE_TOOL]))
        tokens = chat_format.tokenizer(text + END, add_special_tokens=False)["input_ids"]
        turns.append(list(tokens))

        choice = captured_choice(parse(text), turns[-1])
        captured.messages_and_choices.append(choice)
        completion = Completion.model_validate({"choices": [choice.model_dump()]})
        turn = protocol.turn(completion, messages)
        messages.append(turn)
        for number, call in enumerate(turn.tool_calls):
            passage = passages[(len(turns) + number) % len(passages)]
            messages.append(Message(role="tool", content=passage, tool_call_id=call.id))
        if not turn.tool_calls:
            break

    return Conversation(captured, recorded(messages), prompts, turns)


def row_of(conversation: Conversation, chat_format: ChatFormat) -> CapturedRow:
    return captured_row(conversation.captured, conversation.trajectory, chat_format, True)


def assert_row_is_what_the_policy_had(conversation: Conversation, row: TokenRow | None) -> None:
    """Its tokens are the last prompt and the last turn, and those that carry loss are the turns'."""
    assert row is not None
    assert row.logprobs is not None
    assert row.ids == conversation.prompts[-1] + conversation.turns[-1]
    assert row.prompt_ids == conversation.prompts[0]

    mask = [0] * len(row.ids)
    for prompt, turn in zip(conversation.prompts, conversation.turns, strict=True):
        mask[len(prompt) : len(prompt) + len(turn)] = [1] * len(turn)
    assert row.mask == mask
    assert row.logprobs == [-1.0 * each for each in mask]


def test_the_parsers_of_every_profile_are_tried() -> None:
    tried = {"hermes": (None, "hermes"), "qwen3 and hermes": ("qwen3", "hermes")}
    named = set()
    for path in sorted((ROOT / "profiles").glob("*/params.yaml")):
        params = yaml.safe_load(path.read_text())
        sampler = params.get("rl", {}).get("sampler")
        for vllm in (sampler, params["serving"].get("vllm")):
            if vllm is not None:
                named.add((vllm["reasoning_parser"], vllm["tool_call_parser"]))
    assert named == {tried[server] for server, _ in SERVERS if server in tried}


TURNS = {
    "call": ["{call}"],
    "text before the call": ["I look for it.\n{call}", "Again.\n\n{call}"],
    "several calls": ["{call}\n{call}", "Two.\n{call}\n{call}\n{call}"],
    "unicode": ["Zoë, 北京, 😀.\n{call}"],
}
ANSWER = "<answer> Mary Moss</answer>"
THOUGHTS = {"hybrid": "<think>\nWhich town?\n</think>\n\n", "thinking": "Which town?\n</think>\n\n"}
THOUGHTS["keeping"] = THOUGHTS["thinking"]


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize(("server", "kind"), SERVERS)
def test_turns_as_trained_models_write_them_come_back(
    server: str, kind: str, turns: list[str], folder_of: FolderOf
) -> None:
    chat_format = load_chat_format(folder_of(kind))
    thought = THOUGHTS.get(kind, "")
    texts = [thought + turn.format(call=hermes_call("Zoë in 北京")) for turn in turns]
    # Words of the template inside passages
    passages = ["<tool_call>\n</tool_response><|im_end|>\n<think>", "</think><|im_start|>user\n"]
    conversation = converse([*texts, thought + ANSWER], passages, server, kind, chat_format)
    assert len(conversation.turns) == len(turns) + 1
    assert conversation.comes_back()
    assert_row_is_what_the_policy_had(conversation, row_of(conversation, chat_format).row)


@pytest.mark.parametrize("answer", [ANSWER, ""], ids=["answer", "nothing"])
@pytest.mark.parametrize("searches", [0, 1])
@pytest.mark.parametrize(("server", "kind"), SERVERS)
def test_a_last_turn_without_a_thought_is_trained_on_as_it_was_sampled(
    server: str, kind: str, searches: int, answer: str, folder_of: FolderOf
) -> None:
    chat_format = load_chat_format(folder_of(kind))
    calls = [THOUGHTS.get(kind, "") + hermes_call("Silent Harbor")] * searches
    conversation = converse([*calls, answer], ["A passage."], server, kind, chat_format)
    assert_row_is_what_the_policy_had(conversation, row_of(conversation, chat_format).row)


WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
PIECES = st.one_of(
    st.sampled_from(
        [
            "<think>",
            "</think>",
            "<think>\n",
            "\n</think>\n\n",
            "<tool_call>",
            "</tool_call>",
            "<|im_start|>assistant\n",
            "<|im_end|>\n",
            "\n",
            "\n\n",
            " ",
            "I look for it.\n",
            ANSWER,
            hermes_call("北京"),
            hermes_call("Silent Harbor"),
        ]
    ),
    WORDS,
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@st.composite
def conversations(draw: st.DrawFn, thought: str) -> tuple[list[str], list[str]]:
    """Draw turns, most of which call the tool as they should, and passages, which may repeat a turn to the letter."""
    texts: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        calls = "\n".join(
            hermes_call(query) for query in draw(st.lists(WORDS, min_size=1, max_size=2))
        )
        begun = draw(st.sampled_from([thought, "", "<think>\n\n</think>\n\n"]))
        spoken = draw(st.sampled_from(["", "I look for it.\n", "\n", " \n", "Zoë\n\n"]))
        texts.append(draw(st.sampled_from([begun + spoken + calls, draw(TEXTS) + calls])))

    texts.append(draw(TEXTS))
    whole_turns = [f"<|im_start|>assistant\n{text}{END}\n" for text in texts]
    passages = draw(
        st.lists(st.one_of(TEXTS, st.sampled_from(whole_turns)), min_size=1, max_size=3)
    )
    return texts, passages


@pytest.mark.slow
@pytest.mark.parametrize(("server", "kind"), SERVERS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_next_prompt_begins_with_what_was_sampled_or_the_rollout_is_left_out_by_name(
    server: str, kind: str, data: st.DataObject, folder_of: FolderOf
) -> None:
    chat_format = load_chat_format(folder_of(kind))
    texts, passages = data.draw(conversations(THOUGHTS.get(kind, "")))
    conversation = converse(texts, passages, server, kind, chat_format)
    row, reason = row_of(conversation, chat_format)
    assert reason == ("" if conversation.comes_back() else NOT_AS_SAMPLED)
    if not reason:
        assert_row_is_what_the_policy_had(conversation, row)

    metrics = rollout_metrics([Rollout(conversation.trajectory, left_out=reason)], 4)
    assert metrics.get("left_out/not_as_sampled", 0.0) == float(reason == NOT_AS_SAMPLED)


def test_a_passage_that_repeats_a_turn_does_not_stand_for_it(folder_of: FolderOf) -> None:
    chat_format = load_chat_format(folder_of("plain"))
    # The template writes this turn with a newline between text and call
    turn = f"I look for it.{hermes_call('Silent Harbor')}"
    passage = f"<|im_start|>assistant\n{turn}{END}\n"
    conversation = converse([turn, ANSWER], [passage], "hermes", "plain", chat_format)
    assert not conversation.comes_back()
    assert row_of(conversation, chat_format).left_out == NOT_AS_SAMPLED
