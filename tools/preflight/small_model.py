"""A model of a profile's architecture that searches: random weights, and a few steps on the teacher's answers.

    python -m tools.preflight.small_model PARAMS BASE [--full-size]

A pretrained model keeps its size. Of a hub's model, which is in the folder BASE or at the hub,
everything stays that kernels, parsers and templates depend on: architecture, size of a head,
vocabulary, chat template. Depth and width are cut, unless ``--full-size``; such a model is not
trained.
"""

import argparse
import itertools
import random
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from deepsearch_rl.agent.config import AgentConfig
from deepsearch_rl.agent.protocols import AgentProtocol, FunctionCalling, open_protocol
from deepsearch_rl.chat.chat_messages import chat_messages
from deepsearch_rl.chat.prompts import load_prompt
from deepsearch_rl.core.errors import DeepsearchError
from deepsearch_rl.core.files import read_jsonl
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.toy.muon import Muon
from deepsearch_rl.toy.pretrained_model import build_model, world_tokenizer
from deepsearch_rl.toy.pretraining import (
    IGNORED,
    PretrainConfig,
    TrainingExample,
    backward_in_threads,
    batches,
    encode,
)
from deepsearch_rl.train.prepare_model import DESCRIPTIONS, PrepareModelConfig, source_folder

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
}
# Of teaching. A hub's vocabulary is a hundred times larger: after 60 steps, hardly a rollout ends with an answer
STEPS = 60
HUB_STEPS = 250
BATCH_TOKENS = 1500
POOL = 16
TEXT_BEFORE_CALL = "I look it up."


def empty_model(profile: Profile, base: Path, full_size: bool) -> tuple[Any, Any]:
    """Return a model of random weights, and its tokenizer; raise EndpointError if the hub is needed and silent."""
    seed = profile.value("seed")
    source = profile.section("prepare_model", PrepareModelConfig)

    if source.pretrain is not None:
        pretrain = PretrainConfig.model_validate(source.pretrain)
        shape = pretrain.model
        prompt = load_prompt(profile.value("agent.prompt"))
        tokenizer = world_tokenizer(prompt, pretrain.subwords, shape.context_tokens)
        return build_model(shape, tokenizer, seed), tokenizer

    in_folder = (base / "config.json").is_file()
    model, tokenizer = _of_architecture(
        profile, base if in_folder else source_folder(source, DESCRIPTIONS), full_size
    )
    if source.chat_template is not None:
        tokenizer.chat_template = source.chat_template.read_text(encoding="utf-8")
    return model, tokenizer


def _of_architecture(profile: Profile, source: Path, full_size: bool) -> tuple[Any, Any]:
    settings = AutoConfig.from_pretrained(source)
    if not full_size:
        for name, size in SMALL.items():
            setattr(settings, name, min(size, getattr(settings, name)))
        settings.num_key_value_heads = min(2, settings.num_key_value_heads)
        if getattr(settings, "layer_types", None):
            settings.layer_types = settings.layer_types[: settings.num_hidden_layers]

    torch.manual_seed(profile.value("seed"))
    dtype = _dtype(profile) if full_size else torch.float32
    with torch.device(profile.values["rl"]["backend"]["device"]):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    model.generation_config = GenerationConfig.from_model_config(settings)
    return model, AutoTokenizer.from_pretrained(source)


def teach(
    model: Any,
    tokenizer: Any,
    protocol: AgentProtocol,
    trajectories: list[Trajectory],
    steps: int,
) -> None:
    """Train on the teacher's conversations until the model searches as the protocol has it."""
    device = model.device
    parameters = list(model.train().named_parameters())
    examples: list[TrainingExample] = []
    for number, trajectory in enumerate(trajectories):
        tokens, labels = example_of(tokenizer, protocol, trajectory.messages, number)
        examples.append(TrainingExample(tokens.to(device), labels.to(device)))

    matrices: list[tuple[str, torch.nn.Parameter]] = []
    others: list[torch.nn.Parameter] = []
    for name, weight in parameters:
        # Matrices outside of the layers are those of words
        if weight.ndim == 2 and "layers" in name:
            matrices.append((name, weight))
        else:
            others.append(weight)

    adam = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
    rng = random.Random(0)

    with ThreadPoolExecutor(1) as pool:
        muon = Muon(matrices, 0.95, pool)
        for batch in itertools.islice(
            batches(_forever(examples, rng), BATCH_TOKENS, POOL, rng), steps
        ):
            muon.expect(1)
            backward_in_threads(model, [batch], pool)
            muon.step(0.02)
            adam.step()
            adam.zero_grad()


def _dtype(profile: Profile) -> torch.dtype:
    """Return the dtype in which the profile trains first."""
    first = "sft" if "sft" in profile.values else "rl"
    return getattr(torch, profile.values[first]["dtype"])


def example_of(
    tokenizer: Any, protocol: AgentProtocol, messages: Sequence[Message], number: int
) -> TrainingExample:
    """Return a conversation as tokens with the loss on what the model writes.

    Every second conversation with native calls has a text before them, so that the model learns
    both.
    """
    if isinstance(protocol, FunctionCalling):
        return encode(tokenizer, chat_messages(with_text(messages) if number % 2 else messages))

    opening = protocol.request(messages[:1])["messages"]
    tokens = list(
        tokenizer.apply_chat_template(opening, add_generation_prompt=True, return_dict=False)
    )
    labels = [IGNORED] * len(tokens)
    for message in messages[1:]:
        text = tokenizer.encode(message.content, add_special_tokens=False)
        tokens += text
        labels += text if message.role == "assistant" else [IGNORED] * len(text)
    return TrainingExample(torch.tensor(tokens), torch.tensor(labels))


def with_text(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation in which every turn with a call says something first, as large models often do.

    What stands between a text and its call is where parsers and templates differ.
    """
    result: list[Message] = []
    for message in messages:
        if message.tool_calls:
            message = message.model_copy(update={"content": TEXT_BEFORE_CALL})
        result.append(message)

    return result


def _forever(examples: list[TrainingExample], rng: random.Random) -> Iterator[TrainingExample]:
    while True:
        yield from rng.sample(examples, len(examples))


def write_model(profile: Profile, base: Path, full_size: bool) -> None:
    """Write the model folder ``models/<profile>/base`` of the working folder."""
    model, tokenizer = empty_model(profile, base, full_size)
    if not full_size:
        answers = read_jsonl(profile.data / "trajectories" / "teacher.jsonl", Trajectory)
        protocol = open_protocol(profile.section("agent", AgentConfig))
        is_pretrained = profile.values["prepare_model"]["source"] == "pretrain"
        teach(model, tokenizer, protocol, list(answers), STEPS if is_pretrained else HUB_STEPS)
        model.to(_dtype(profile))

    model.save_pretrained(profile.models / "base")
    tokenizer.save_pretrained(profile.models / "base")


def main() -> None:
    """Command line; an error ends it with status 1 and one paragraph."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("params", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("--full-size", action="store_true")
    arguments = parser.parse_args()

    try:
        write_model(load_profile(arguments.params), arguments.base, arguments.full_size)
    except DeepsearchError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
