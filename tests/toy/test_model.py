import pytest
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.toy.grammar import GRAMMARS, name_words
from deepsearch_rl.toy.pretrained_model import FORMAT_TOKENS, SPECIAL_TOKENS


def test_every_name_word_and_every_inferred_noun_of_both_worlds_is_one_token_after_a_space(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    words = [word for grammar in GRAMMARS.values() for word in name_words(grammar)]
    assert len(words) > 400
    for grammar in GRAMMARS.values():
        words += [word for noun in grammar.inferences for word in noun.split()]
    assert [word for word in words if len(tokenizer.encode(f" {word}")) != 1] == []


@pytest.mark.parametrize(
    "text",
    ["Zürich's 1984 \t tea\n\n{x: 'ø'} 日本", " Ada  Abbott</answer>", "<|im_start|>user\nhi"],
)
def test_any_text_comes_back_from_its_tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_format_tokens_survive_a_decoder_that_skips_special_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokens = tokenizer.encode("".join((*SPECIAL_TOKENS, *FORMAT_TOKENS)))
    assert len(tokens) == len(SPECIAL_TOKENS) + len(FORMAT_TOKENS)
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "".join(FORMAT_TOKENS)


def test_the_system_block_stays_under_150_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    turns = [{"role": "system", "content": load_prompt("tiny")}]
    block = tokenizer.apply_chat_template(turns, tools=[RETRIEVE_TOOL], tokenize=False)
    assert len(tokenizer.encode(block)) < 150
