"""A small sentence encoder trained here, because its vectors have to find something: real weights are not downloaded.

A BERT of a few layers with mean pooling. It learns word pieces from the passages, and from pairs of a
query and its passage that each query is nearer to its own passage than to the others of the batch
(InfoNCE). The word vectors begin as latent semantic analysis of the passages, so that minutes on a
core are enough.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from sklearn.utils.extmath import randomized_svd
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional
from transformers import BertConfig, BertModel, BertTokenizerFast

from benchmarks.data import QUERY_WORDS

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
PIECES = 12_000
QUERY_TOKENS = 32
PASSAGE_TOKENS = 64
BATCH_PAIRS = 128
# Pairs of a batch whose query is a run of words of the passage, beside questions
CUT_PAIRS = 64
TEMPERATURE = 0.05
LEARNING_RATE = 1e-3
# Of the vectors of positions at the start, beside BERT's own
POSITION_SHARE = 0.1

# Question sets with gold passages, their files, and the part of the questions that is held out
HELD_OUT = (
    ("hotpotqa", ("dev", "train100"), 1 / 3),
    ("musique", ("dev", "train"), 1 / 3),
    ("2wikimultihopqa", ("dev",), 0.0),
)

Pair = tuple[str, str]


def train_encoder(
    folder: Path, passages: Sequence[str], pairs: Sequence[Pair], steps: int, seed: int
) -> list[float]:
    """Write a trained encoder as a plain transformers folder, and return the loss of every step.

    ``pairs`` are questions and passages that answer them; of ``passages``, runs of words are learnt
    to find their own passage.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = BertWordPieceTokenizer()
    words.train_from_iterator(passages, vocab_size=PIECES, show_progress=False)
    words.save_model(str(folder))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)

    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SHAPE,
    )
    model = BertModel(shape, add_pooling_layer=False)
    _start_from_words(model, tokenizer, passages, seed)

    losses = _train(model, tokenizer, passages, pairs, steps, random.Random(seed))
    model.save_pretrained(folder)
    return losses


def _start_from_words(
    model: BertModel, tokenizer: BertTokenizerFast, passages: Sequence[str], seed: int
) -> None:
    """Set the word vectors to those of latent semantic analysis, as long as the model's own are on average."""
    encoded = tokenizer(list(passages), add_special_tokens=False)["input_ids"]
    columns = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in encoded])
    rows = np.repeat(np.arange(len(encoded)), [len(ids) for ids in encoded])
    counts = csr_matrix(
        (np.ones(len(rows), np.float32), (rows, columns)), (len(encoded), len(tokenizer))
    )

    holding_V = np.asarray((counts > 0).sum(axis=0)).ravel()
    idf_V = np.log((1 + len(encoded)) / (1 + holding_V))
    weighted = counts.log1p() @ diags(idf_V)
    _, values_D, words_DV = randomized_svd(weighted, SHAPE["hidden_size"], random_state=seed)

    vectors_VD = words_DV.T * np.sqrt(values_D)
    lengths_V1 = np.linalg.norm(vectors_VD, axis=1, keepdims=True)
    table = model.embeddings.word_embeddings.weight
    with torch.no_grad():
        # Pieces that no passage holds, the special ones among them, keep their random vectors
        known_V = torch.from_numpy(lengths_V1[:, 0] > 1e-3)
        length = float(table.norm(dim=1).mean())
        units_VD = vectors_VD / np.maximum(lengths_V1, 1e-12)
        table[known_V] = torch.from_numpy(length * units_VD).float()[known_V]
        model.embeddings.position_embeddings.weight.mul_(POSITION_SHARE)
        model.embeddings.token_type_embeddings.weight.mul_(POSITION_SHARE)


def _train(
    model: BertModel,
    tokenizer: BertTokenizerFast,
    passages: Sequence[str],
    pairs: Sequence[Pair],
    steps: int,
    rng: random.Random,
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    losses: list[float] = []
    model.train()

    for step in range(steps):
        batch = rng.sample(pairs, BATCH_PAIRS - CUT_PAIRS)
        batch += [_cut_pair(passage, rng) for passage in rng.sample(passages, CUT_PAIRS)]
        queries, answers = zip(*batch, strict=True)
        queries_BD = _embed(model, tokenizer, queries, QUERY_TOKENS)
        answers_BD = _embed(model, tokenizer, answers, PASSAGE_TOKENS)

        scores_BB = queries_BD @ answers_BD.T / TEMPERATURE
        # A passage that answers two questions of the batch is no wrong answer to either
        same_BB = torch.tensor([[left == right for right in answers] for left in answers])
        same_BB.fill_diagonal_(False)
        scores_BB = scores_BB.masked_fill(same_BB, -torch.inf)
        loss = functional.cross_entropy(scores_BB, torch.arange(len(batch)))

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 10 == 0:
            sys.stderr.write(f"step {step} of {steps}: loss {loss.item():.2f}\n")

    model.eval()
    return losses


def _cut_pair(passage: str, rng: random.Random) -> Pair:
    """Return a run of the passage's words as a query, and the passage, in half of the cases without it."""
    words = passage.split()
    length = rng.randint(*QUERY_WORDS)
    start = rng.randrange(max(1, len(words) - length))
    query = words[start : start + length]
    rest = words[:start] + words[start + length :]
    return " ".join(query), " ".join(rest) if rng.random() < 0.5 else passage


def _embed(
    model: BertModel, tokenizer: BertTokenizerFast, texts: Sequence[str], max_tokens: int
) -> torch.Tensor:
    """Return embeddings_BD of length 1."""
    inputs = tokenizer(
        list(texts), padding=True, truncation=True, max_length=max_tokens, return_tensors="pt"
    )
    hidden_BTD = model(**inputs).last_hidden_state
    mask_BT1 = inputs["attention_mask"].unsqueeze(-1)
    return functional.normalize((hidden_BTD * mask_BT1).sum(dim=1), dim=1)
