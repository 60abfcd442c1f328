"""What encoding a passage costs with an encoder of e5-base's shape.

The weights are random, which changes no multiplication; the vocabulary is learnt from the passages, so that they are
cut into about as many tokens as e5's own would give.
"""

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.wiki18.passages import Passage
from deepsearch_rl.records import Record
from deepsearch_rl.retrieval.encoders.transformer import TransformersConfig, TransformersEncoder

if TYPE_CHECKING:
    from transformers import BertTokenizerFast  # pyright: ignore[reportAttributeAccessIssue]

VOCABULARY = 30_522
"""Words and word pieces of BERT, which e5 reads with."""
WARM_UP = 4


class EncoderSlope(Record):
    """CPU seconds of one core per passage, with the tokens that a passage has on average."""

    passages: int
    tokens: float
    cpu_s: float
    parameters: int
    """Without the vocabulary's, which are looked up and not multiplied."""


def measure_encoder(passages: list[Passage], count: int, folder: Path) -> EncoderSlope:
    """Encode ``count`` passages on one core; ``folder`` gets the model."""
    import torch  # noqa: PLC0415 - seconds to import
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    texts = [f'"{passage.title}"\n{" ".join(passage.words)}' for passage in passages]
    tokenizer = _learn_tokenizer(texts, folder)
    torch.manual_seed(0)
    model = BertModel(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=512))
    model.save_pretrained(folder)
    encoder = TransformersEncoder(_config(folder))
    chosen = random.Random(0).sample(texts, min(count, len(texts)))
    encoder.encode(chosen[:WARM_UP], "passage")
    started = time.process_time()
    encoder.encode(chosen, "passage")
    seconds = time.process_time() - started
    lengths = [len(tokenizer("passage: " + text, truncation=True, max_length=512).input_ids) for text in chosen]
    return EncoderSlope(
        passages=len(chosen),
        tokens=sum(lengths) / len(chosen),
        cpu_s=seconds / len(chosen),
        parameters=sum(weights.numel() for weights in model.encoder.parameters()),
    )


def _learn_tokenizer(texts: list[str], folder: Path) -> "BertTokenizerFast":
    from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415
    from transformers import BertTokenizerFast  # noqa: PLC0415  # pyright: ignore[reportAttributeAccessIssue]

    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=VOCABULARY, show_progress=False)
    folder.mkdir(parents=True, exist_ok=True)
    trainer.save_model(str(folder))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    return tokenizer


def _config(folder: Path) -> TransformersConfig:
    return TransformersConfig(
        name="transformers",
        model=str(folder),
        revision=None,
        pooling="mean",
        query_prefix="query: ",
        passage_prefix="passage: ",
        max_tokens=512,
        batch_tokens=4096,
        threads=1,
        device="cpu",
        dtype="float32",
    )
