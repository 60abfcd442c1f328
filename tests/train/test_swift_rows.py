"""Training rows and the proof of their tokens, against the real tokenizer, ms-swift and the server's rendering."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import CheckFailedError
from deepsearch_rl.core.records import Trajectory
from deepsearch_rl.train.swift_rows import swift_row
from deepsearch_rl.train.training_set import TokenProof
from tests.conversations import conversation_of

PASSAGES = '[1] Zoë\'s "Café"\nThe mayor of Northgate is Kaspar Granger.\n\n[2] B\n{"x": 1}'


def conversation(
    *turns: tuple[str, Iterable[str]], answer: str = "<answer> Kaspar Granger</answer>"
) -> Trajectory:
    """A trajectory whose assistant turns have the given texts and queries, and then the answer."""
    searching = [(None, text, queries) for text, queries in turns]
    return conversation_of([*searching, (None, answer, ())], lambda _: PASSAGES)


ONE_CALL = conversation(("", ["mayor of Northgate"]))
CONVERSATIONS = [
    conversation(),
    ONE_CALL,
    conversation(("", ["mayor of Northgate"]), ("", ['spouse of "Kaspar" \\ Zoë']), ("", ["a"])),
    conversation(("", ["one", "two"]), ("", ["three"])),
    conversation(("", ["mayor"]), answer="<answer> yes</answer>\n"),
    conversation(("I look for the mayor.", ["mayor of Northgate"])),
    conversation(
        ("Two at once. ", ["one", "two"]), ("", ["three"]), ("and <think>more</think>", ["four"])
    ),
]


@pytest.fixture(scope="module")
def proof(model_folder: Path) -> TokenProof:
    return TokenProof(model_folder, "qwen3", "qwen3_nothinking", "hermes", "default")


def test_a_row_has_the_fields_that_ms_swift_reads_and_no_others():
    row = json.loads(swift_row(ONE_CALL).model_dump_json())
    assert json.loads(row.pop("tools")) == [RETRIEVE_TOOL]
    assert row == {
        "messages": [
            {"role": "system", "content": "Search."},
            {"role": "user", "content": "Who is mayor?"},
            {
                "role": "tool_call",
                "content": '{"name": "retrieve", "arguments": {"query": "mayor of Northgate"}}',
            },
            {"role": "tool_response", "content": PASSAGES},
            {"role": "assistant", "content": "<answer> Kaspar Granger</answer>"},
        ]
    }


@pytest.mark.parametrize("trajectory", CONVERSATIONS)
def test_training_tokens_and_served_tokens_agree(proof: TokenProof, trajectory: Trajectory):
    assert proof.check(trajectory, swift_row(trajectory)) > 150


def test_exactly_the_assistant_turns_are_trained(
    proof: TokenProof, monkeypatch: pytest.MonkeyPatch
):
    compared = []
    monkeypatch.setattr(proof, "_compare", lambda *arguments: compared.append(arguments))
    proof.check(ONE_CALL, swift_row(ONE_CALL))
    [labels] = [swift for _, what, swift, _ in compared if what == "trained tokens"]
    trained = proof._chat_format.tokenizer.decode([token for token in labels if token >= 0])
    call = '<tool_call>\n{"name": "retrieve", "arguments": {"query": "mayor of Northgate"}}\n</tool_call>'
    assert trained == f"{call}<|im_end|>\n<answer> Kaspar Granger</answer><|im_end|>\n"


@pytest.mark.parametrize(
    ("template", "agent_template"), [("qwen3", "hermes"), ("qwen3_nothinking", "react_en")]
)
def test_a_template_that_trains_other_tokens_is_refused(
    model_folder: Path, template: str, agent_template: str
):
    proof = TokenProof(model_folder, "qwen3", template, agent_template, "default")
    with pytest.raises(CheckFailedError, match="training tokens differ"):
        proof.check(ONE_CALL, swift_row(ONE_CALL))


def test_a_row_that_is_not_its_trajectory_is_refused(proof: TokenProof):
    with pytest.raises(CheckFailedError, match="q#0"):
        proof.check(ONE_CALL, swift_row(conversation(("", ["mayor of Southgate"]))))


def test_a_mask_that_trains_more_than_assistant_turns_is_refused(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    proof = TokenProof(model_folder, "qwen3", "qwen3_nothinking", "hermes", "default")
    monkeypatch.setattr(proof._training, "_loss_scale", "all")
    with pytest.raises(CheckFailedError, match="trained tokens differ"):
        proof.check(ONE_CALL, swift_row(ONE_CALL))
