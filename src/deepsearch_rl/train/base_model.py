"""Whether a Hugging Face folder can become a search agent, found in seconds, before hours of work.

:func:`complete_base` reads descriptions and headers alone, never the weights:

- every shard of the weights is there, as safetensors, and not quantized;
- the architecture is a decoder that writes text;
- the tokenizer gives back the text that it encoded: of letters of several scripts, digits, new lines
  and a tool call. A trained row is compared with the served one as tokens, and an answer is scored as text;
- the chat template renders system prompt, tools, tool calls and their results;
- the token that ends a turn ends generation too.
"""

from pathlib import Path
from typing import Any

import jinja2
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import chat_template
from deepsearch_rl.core.errors import ConfigError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.core.model_config import CONFIG
from deepsearch_rl.train.model_folder import WEIGHTS

GENERATION_CONFIG = "generation_config.json"
SHARDS = "model.safetensors.index.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SAVE = "`AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)`"
TEMPLATE_FIX = (
    "name one with tools in prepare_model.chat_template "
    "(src/deepsearch_rl/chat/chat_template.jinja is ChatML's)"
)

_QUERY = "founder of company 12"
_PASSAGE = "Title: Ōsaka — 大阪\n\n1. Σ = 3.14159; 1,024 items\tand 'quotes'."
_ANSWER = 'It isn\'t in doc 7 , but in "№ 12": <answer>Søren 2049</answer>'
_CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer with what you find.\n\n- Be brief."},
    {"role": "user", "content": "Who founded Élan, and in 1987?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "function": {"name": "retrieve", "arguments": {"query": _QUERY}},
            }
        ],
    },
    {"role": "tool", "name": "retrieve", "content": _PASSAGE},
    {"role": "assistant", "content": _ANSWER},
]


def complete_base(folder: Path, name: str) -> None:
    """Check a base model, and write into its generation config that the end of a turn ends generation.

    ``name`` is where the model came from, for messages.

    Raises:
        ConfigError: the folder holds no such model, or one that cannot be trained as an agent.
    """
    require_weights(folder, name)
    _require_causal(_config(folder, name), name)
    tokenizer = _tokenizer(folder, name)
    text = _render(tokenizer, folder, name)
    _require_round_trip(tokenizer, text, name)
    _end_turns(folder, tokenizer, text, name)


def require_weights(folder: Path, name: str) -> None:
    """Raise ConfigError, with what to do, unless a folder holds every shard of a model as safetensors."""
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{name} holds no config.json, so it is no model in Hugging Face's layout; name the folder "
            "that has one (of an adapter: merge it into its base first)."
        )

    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise ConfigError(
            f"{name} holds no weights as *.safetensors; if it has others (.bin, .gguf), save them as "
            f"safetensors with {SAVE} (for a .gguf with gguf_file=NAME in from_pretrained), and name "
            "the new folder: prepare_model.source: folder."
        )

    shards = folder / SHARDS
    named = set(read_json(shards)["weight_map"].values()) if shards.is_file() else set()
    missing = sorted(named - {file.name for file in files})
    if missing:
        raise ConfigError(
            f"{name} lacks {', '.join(missing[:3])} of the weights that its {SHARDS} names; download it again."
        )

    for file in files:
        try:
            with safe_open(file, framework="numpy"):
                pass
        except SafetensorError as error:
            raise ConfigError(
                f"{file.name} of {name} holds no weights ({error}); if it is a pointer of Git LFS, run "
                "`git lfs pull` there, otherwise download it again."
            ) from error


def _config(folder: Path, name: str) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"config.json of {name} names no model_type; download the model again.")
    return config


def _require_causal(config: dict[str, Any], name: str) -> None:
    architectures = config.get("architectures") or ["none"]
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if config.get("is_encoder_decoder") or not known.intersection(architectures):
        raise ConfigError(
            f"{name} is a {config['model_type']} model ({', '.join(architectures)}), and no decoder that "
            "continues text; name a causal language model, whose architecture ends in ForCausalLM."
        )
    if config.get("quantization_config"):
        raise ConfigError(
            f"{name} holds quantized weights, into which no adapter can be merged; name the model in 16 "
            "or 32 bits."
        )


def _tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    missing = [file for file in TOKENIZER if not (folder / file).is_file()]
    if missing:
        raise ConfigError(
            f"{name} holds no {' and no '.join(missing)}; write them with "
            "`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`."
        )
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the parser's own errors have no common class
        raise ConfigError(f"the tokenizer of {name} cannot be read: {error}") from error


def _render(tokenizer: PreTrainedTokenizerBase, folder: Path, name: str) -> str:
    """Return a conversation with tools; raise ConfigError where the chat template leaves out a part of it."""
    if not chat_template(folder):
        raise ConfigError(f"{name} has no chat template; {TEMPLATE_FIX}.")
    try:
        text = str(
            tokenizer.apply_chat_template(_CONVERSATION, tools=[RETRIEVE_TOOL], tokenize=False)  # pyright: ignore[reportArgumentType]
        )
    except (jinja2.TemplateError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the chat template of {name} refuses a conversation with a tool call ({error}); {TEMPLATE_FIX}."
        ) from error

    function = RETRIEVE_TOOL["function"]
    assert isinstance(function, dict)
    # In ASCII and on one line: templates may write calls and results as JSON
    parts = {
        "the tool": str(function["description"]),
        "the system prompt": "Answer with what you find.",
        "the tool's call": _QUERY,
        "the tool's result": "3.14159",
        "the answer": _ANSWER,
    }
    missing = [part for part, words in parts.items() if words not in text]
    if missing:
        raise ConfigError(
            f"the chat template of {name} leaves out {' and '.join(missing)}; {TEMPLATE_FIX}."
        )
    return text


def _require_round_trip(tokenizer: PreTrainedTokenizerBase, rendered: str, name: str) -> None:
    text = f"{rendered}{_PASSAGE}\n{_ANSWER}"
    again = str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)))
    if again == text:
        return

    place = next(
        (i for i, (one, other) in enumerate(zip(text, again, strict=False)) if one != other),
        min(len(text), len(again)),
    )
    raise ConfigError(
        f"the tokenizer of {name} does not give back its own text: {text[place : place + 16]!r} became "
        f"{again[place : place + 16]!r}, so what the model is trained on would not be what it is served. "
        "Name a model with a byte-level tokenizer, or, if its tokenizer_config.json has "
        "clean_up_tokenization_spaces: true, set that to false."
    )


def _end_turns(folder: Path, tokenizer: PreTrainedTokenizerBase, text: str, name: str) -> None:
    """Add the token that ends a turn to the generation config, which a server reads."""
    rest = text.rpartition(_ANSWER)[2]
    ids = tokenizer.encode(rest.lstrip(), add_special_tokens=False)
    end = ids[0] if ids else None
    if end is None or end not in tokenizer.added_tokens_decoder:
        raise ConfigError(
            f"the chat template of {name} ends a turn with {rest.strip()!r}, which is no token of the "
            f"tokenizer, so no answer would end; {TEMPLATE_FIX}, or another that fits the tokenizer."
        )

    path = folder / GENERATION_CONFIG
    settings = read_json(path) if path.is_file() else {}
    known = settings.get("eos_token_id", read_json(folder / CONFIG).get("eos_token_id"))
    ends = known if isinstance(known, list) else [] if known is None else [known]
    if end not in ends:
        known = [*ends, end]
    if settings.get("eos_token_id") != known:
        write_json(path, {**settings, "eos_token_id": known})
