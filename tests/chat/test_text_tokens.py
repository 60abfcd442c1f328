"""Parts of a conversation are encoded once, and its tokens are those of the whole text."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from deepsearch_rl.chat.chat_format import TextTokens

MARKS = ["<|end|>", "<|end|>s", "<s>"]
WORDS = [
    "who",
    " founded",
    " Ætherford",
    "\n",
    "\n\n",
    "  ",
    " 1932",
    "<",
    "|end|>",
    "é",
    "é",
    "<tool>",
    "",
]


def made_tokenizer(
    pre_tokenizer: pre_tokenizers.PreTokenizer, **of_marks: bool
) -> PreTrainedTokenizerFast:
    """A small BPE tokenizer with special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["who founded Ætherford in 1932? Ætherford founded who"] * 9, trainer
    )
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False, **of_marks) for mark in MARKS])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(
    ("pre_tokenizer", "of_marks", "is_cut"),
    [
        (BYTES, {}, True),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), {}, True),
        (BYTES, {"lstrip": True, "rstrip": True}, False),
        (BYTES, {"single_word": True}, False),
        (pre_tokenizers.Metaspace(prepend_scheme="first"), {}, False),
    ],
)
def test_the_tokens_are_those_of_the_whole_text(
    pre_tokenizer: pre_tokenizers.PreTokenizer, of_marks: dict[str, bool], is_cut: bool
) -> None:
    tokenizer = made_tokenizer(pre_tokenizer, **of_marks)
    text_tokens = TextTokens(tokenizer)
    assert text_tokens.is_cut == is_cut
    generator = random.Random(0)
    for _ in range(300):
        text = "".join(generator.choices([*WORDS, *MARKS], k=generator.randint(0, 12)))
        assert text_tokens.ids(text) == tokenizer.encode(text, add_special_tokens=False), text


def test_only_what_is_new_in_a_text_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = made_tokenizer(BYTES)
    text_tokens = TextTokens(tokenizer)
    encoded: list[str] = []
    encode = tokenizer.encode

    def recorded(text: str, **options: bool) -> list[int]:
        encoded.append(text)
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", recorded)
    text_tokens.ids("who founded<|end|> Ætherford")
    text_tokens.ids("who founded<|end|> Ætherford<|end|> 1932")
    # The special token was one of the probes
    assert encoded == ["who founded", " Ætherford", " 1932"]
