"""Tokens: how many a sentence has, however they are counted."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from deepsearch_rl.core.errors import UnavailableError, UnknownNameError
from deepsearch_rl.data.sentences import sentence_spans
from deepsearch_rl.data.token_counts import HfCounter, WordCounter, load_tokenizer
from tests.data.tokenizers_of import byte_pairs, word_pieces

CHARACTERS = [
    *"aB1,.!?-'\"[] \n\t\x0b\x0c\x1c\x85\u2028\u3000\u3002\u0301\u200b",
    "Ünder",
    "中文",
    "é",
    "[CLS]",
    "Word ",
    "well-known, ",
]


def random_texts() -> list[str]:
    rng = random.Random(0)
    return ["".join(rng.choices(CHARACTERS, k=rng.randrange(200))) for _ in range(300)]


@pytest.mark.parametrize("train", [word_pieces, byte_pairs])
def test_every_sentence_has_as_many_tokens_as_the_tokenizer_gives_it_alone(
    train: Callable[[list[str]], Tokenizer],
) -> None:
    texts = random_texts()
    tokenizer = train(texts)
    counter = HfCounter(tokenizer)
    for text in texts:
        sentences = list(sentence_spans(text))
        counted = counter.counts(text, sentences)
        alone = [
            tokenizer.encode(text[start:end], add_special_tokens=False) for start, end in sentences
        ]
        assert counted == list(map(len, alone)), text


def test_words_are_counted_as_they_are_found() -> None:
    text = "It's 3.5 km. Naïve words…\nMore of them."
    assert WordCounter().counts(text, list(sentence_spans(text))) == [8, 3, 4]


def test_a_tokenizer_that_cuts_and_pads_is_asked_not_to() -> None:
    tokenizer = word_pieces(["some words here"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    counter = HfCounter(tokenizer)
    text = "some words here some words here."
    assert counter.counts(text, list(sentence_spans(text))) == [7]
    assert len(list(counter.spans(text))) == 7


def test_a_tokenizer_folder_counts_by_its_own_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert list(load_tokenizer(f"hf:{tmp_path}").spans("It's here, now.")) == [
        (0, 4),
        (5, 10),
        (11, 15),
    ]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("word", UnknownNameError, "Did you mean 'words'"),
        ("hf:", UnknownNameError, "hf:<folder or repository>"),
    ],
)
def test_an_unknown_tokenizer_is_refused_with_the_valid_names(
    name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_tokenizer(name)


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(UnavailableError, match=r"tokenizer\.json"):
        load_tokenizer(f"hf:{tmp_path}")
