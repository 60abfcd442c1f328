"""The prompts, and what the shortest of them costs."""

import pytest

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.errors import UnknownNameError
from deepsearch_rl.training.pretrain.prepare import world_tokenizer


@pytest.mark.parametrize("name", ["multihoprag", "multihoprag_nothink", "multihoprag_thinking", "tiny"])
def test_every_prompt_asks_for_an_answer_between_tags(name: str):
    assert "<answer>" in load_prompt(name)


def test_an_unknown_prompt_is_refused_with_the_nearest_names():
    with pytest.raises(UnknownNameError, match="Did you mean 'multihoprag_nothink'"):
        load_prompt("multihoprag_no_think")


def test_the_tiny_prompt_has_at_most_25_words_and_its_system_block_stays_under_150_tokens():
    assert len(load_prompt("tiny").split()) <= 25
    tokenizer = world_tokenizer(load_prompt("tiny"), 400, 2048)
    messages = [{"role": "system", "content": load_prompt("tiny")}]
    text = tokenizer.apply_chat_template(messages, tools=[RETRIEVE_TOOL], tokenize=False)
    assert len(tokenizer.encode(str(text))) < 150
