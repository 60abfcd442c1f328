"""A byte-level BPE vocabulary in which every word of given texts is one token.

Copying names is what a model of this size learns last, and a name of one token per word is copied in as many steps as
it has words. Qwen's pre-tokeniser joins a word with the space before it, so the promise holds for words that follow a
space: that is why answers are written ``<answer> X</answer>``.

Merges alone would need a thousand intermediate tokens to build these words. Instead, as in Llama 3's tokenizer
(``ignore_merges``), a word that is in the vocabulary is taken whole, and merges serve any other text.
"""

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# Added but not special: a decoder that skips special tokens must keep them, or no tool call could be parsed.
FORMAT_TOKENS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<answer>", "</answer>"),
)
# Qwen2's pre-tokenisation (transformers, models/qwen2/tokenization_qwen2.py): a word takes the one space before it,
# and every digit stands alone.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer(
    texts: Sequence[str], words: Sequence[str], chat_template: str, subwords: int, context_tokens: int
) -> PreTrainedTokenizerFast:
    """A tokenizer whose vocabulary holds every word of ``texts``, and ``words`` as they stand after a space.

    Args:
        texts: text whose words become tokens as they stand.
        words: words that must be one token after a space.
        chat_template: Jinja template of conversations, saved with the tokenizer.
        subwords: size of the part learned by BPE, the 256 bytes included.
        context_tokens: longest sequence of the model.
    """
    texts = [*texts, *(f" {word}" for word in words)]
    splitter = _pre_tokenizer()
    whole = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    backend = Tokenizer(_with_whole_words(_learned_merges(texts, subwords), sorted(whole)))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in FORMAT_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=chat_template,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _learned_merges(texts: Sequence[str], subwords: int) -> Tokenizer:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=subwords, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    return learner


def _with_whole_words(learner: Tokenizer, words: Sequence[str]) -> models.BPE:
    learned = json.loads(learner.to_str())["model"]
    vocabulary: dict[str, int] = learned["vocab"]
    for word in words:
        vocabulary.setdefault(word, len(vocabulary))
    return models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in learned["merges"]], ignore_merges=True)
