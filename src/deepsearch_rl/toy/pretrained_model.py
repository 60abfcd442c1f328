"""The tokenizer of the generated worlds and the empty Qwen3 model.

The tokenizer is a byte-level BPE in which every word of given texts is one token, because copying
names is what a model of this size learns last. Qwen's pre-tokeniser joins a word with the space
before it, so this holds for words that follow a space: that is why answers are written ``<answer>
X</answer>``. As in Llama 3's tokenizer (``ignore_merges``), a word that is in the vocabulary is
taken whole, and merges serve any other text.
"""

import json
import re
from collections.abc import Iterator

import torch
from pydantic import Field
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import load_chat_template
from deepsearch_rl.core.records import Record
from deepsearch_rl.toy.grammar import (
    GRAMMARS,
    STATEMENTS,
    STYLES,
    name_words,
    write_note,
    write_plan,
    write_query,
)

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
# Added but not special: a decoder that skips special tokens must keep them, or no tool call could
# be parsed.
FORMAT_TOKENS = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>", "<answer>", "</answer>"),
)
# Qwen2's pre-tokenisation (transformers, models/qwen2/tokenization_qwen2.py): a word takes the one
# space before it, and every digit stands alone.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def world_tokenizer(prompt: str, subwords: int, context_tokens: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of models that read the generated worlds.

    Its vocabulary holds every word of the system block and of both worlds' sentences, and their
    name words as they stand after a space. ``subwords`` is the size of the part learned by BPE, the
    256 bytes included.
    """
    template = load_chat_template()
    contents = {"system": prompt, "user": "", "assistant": ""}
    turns = [{"role": role, "content": content} for role, content in contents.items()]
    texts = [
        render_jinja_template([turns], tools=[RETRIEVE_TOOL], chat_template=template)[0][0],
        '"}}\n',
    ]
    texts += _wordings()
    for grammar in GRAMMARS.values():
        # With the space before: at the beginning of a text alone, a name is cut into parts
        texts += [f" {word}" for word in name_words(grammar)]

    backend = _learn(texts, subwords)
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.add_tokens([AddedToken(token, normalized=False) for token in FORMAT_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=context_tokens,
        clean_up_tokenization_spaces=False,
    )


def _wordings() -> Iterator[str]:
    """Yield every sentence, phrase and question template without its placeholders, and every relation's words."""
    templates = [*STATEMENTS, write_query("{subject}", "{noun}"), write_note("{noun}", "{object}")]
    templates.append(write_note("{noun}", None))
    templates.append(write_plan(["{noun}"]))
    for style in STYLES.values():
        templates += [style.step, *style.questions]
    for grammar in GRAMMARS.values():
        templates += grammar.fillers
        for relation in grammar.relations.values():
            templates.append(f"a {relation.noun} {relation.second}")
        for noun in grammar.inferences:
            templates.append(f"a {noun}")

    for template in templates:
        text = re.sub(r" ?\{\w+\}", "", template)
        # A word at the beginning of a text and one behind a blank are different tokens
        yield from (text, f" {text}")


def _learn(texts: list[str], subwords: int) -> Tokenizer:
    """Return the BPE learned from texts with all of their words as whole tokens."""
    backend = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="isolated")
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = splitter = pre_tokenizers.Sequence([words, bytes_of_words])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=subwords, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)

    words_of_texts: set[str] = set()
    for text in texts:
        words_of_texts.update(piece for piece, _ in splitter.pre_tokenize_str(text))

    settings = json.loads(backend.to_str())
    vocabulary: dict[str, int] = settings["model"]["vocab"]
    # Sorted, so that equal texts give equal numbers
    for word in sorted(words_of_texts):
        vocabulary.setdefault(word, len(vocabulary))
    settings["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(settings))


class ModelShape(Record):
    """Shape of a Qwen3 model with tied embeddings."""

    hidden_size: int = Field(ge=8, description="width of the residual stream")
    layers: int = Field(ge=1, description="number of decoder layers")
    heads: int = Field(ge=1, description="number of query heads")
    kv_heads: int = Field(ge=1, description="number of key and value heads; divides heads")
    head_dim: int = Field(ge=2, description="width of a head")
    mlp_size: int = Field(ge=8, description="width of the gated feed-forward layer")
    rope_theta: float = Field(gt=1, description="base of the rotary position angles")
    initializer_range: float = Field(gt=0, description="standard deviation of the first weights")
    first_attention_norm: float = Field(
        gt=0, description="first weight of the norms of queries and keys; larger: sharper attention"
    )
    first_mlp_norm: float = Field(
        gt=0, description="first weight of the norms before the feed-forward layers"
    )
    context_tokens: int = Field(
        ge=128, description="longest sequence that the model promises to handle"
    )


def build_model(
    config: ModelShape, tokenizer: PreTrainedTokenizerFast, seed: int
) -> Qwen3ForCausalLM:
    """Return a float32 model with random weights drawn from ``seed``, its generation settings included.

    The norms begin near the values that training gives them, so that copying, which needs sharp
    attention and no feed-forward layer, is learnt sooner (docs/experiments.md).
    """
    torch.manual_seed(seed)
    vocabulary = tokenizer.get_vocab()
    end = vocabulary[TURN_END]
    padding = vocabulary[END_OF_TEXT]
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.mlp_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_tokens,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            initializer_range=config.initializer_range,
            tie_word_embeddings=True,
            # Saved as it is: without it a server recomputes every token of every turn
            use_cache=True,
            eos_token_id=end,
            pad_token_id=padding,
            dtype="float32",
        )
    )
    for name, weight in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(weight, config.first_attention_norm)
        elif name.endswith("post_attention_layernorm.weight"):
            torch.nn.init.constant_(weight, config.first_mlp_norm)

    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.7, eos_token_id=end, pad_token_id=padding
    )
    return model
