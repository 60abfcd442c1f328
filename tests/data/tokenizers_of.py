"""Two kinds of tokenizers, trained on given texts."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers


def word_pieces(texts: list[str]) -> Tokenizer:
    """A tokenizer that lower-cases and drops white space, so that its own decoding is another text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def byte_pairs(texts: list[str]) -> Tokenizer:
    """A tokenizer of bytes, several tokens of which may lie in one character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
