from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config

from deepsearch_rl.agent.protocols import FunctionCalling, SearchTags
from deepsearch_rl.core.profile import Profile, find_profile
from deepsearch_rl.core.records import Message, Trajectory
from deepsearch_rl.toy.pretraining import IGNORED
from tests.policies import policy_folder  # noqa: F401  a fixture
from tools import ROOT
from tools.preflight import small_model
from tools.preflight.project import cut_values
from tools.preflight.small_model import empty_model, example_of, teach


@pytest.fixture
def gpu_profile() -> Profile:
    """The gpu profile's cut copy, trained on a CPU."""
    values = cut_values(find_profile(ROOT, "gpu").values, find_profile(ROOT, "smoke").values)
    return Profile(Path("params.yaml"), values).with_overrides({"rl.backend.device": "cpu"})


@pytest.fixture
def base(policy_folder: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A folder of a larger model's config, with a tokenizer."""
    AutoTokenizer.from_pretrained(policy_folder).save_pretrained(tmp_path)
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 3,
        "max_window_layers": 3,
    }
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32}
    Qwen3Config(vocab_size=2000, **sizes, **heads).save_pretrained(tmp_path)
    return tmp_path


def test_a_hubs_model_keeps_architecture_heads_and_vocabulary_and_loses_depth_and_width(
    gpu_profile: Profile, base: Path
) -> None:
    model, tokenizer = empty_model(gpu_profile, base, full_size=False)
    config = model.config
    assert (config.model_type, config.vocab_size, config.head_dim) == ("qwen3", 2000, 32)
    assert (config.num_hidden_layers, config.hidden_size, len(config.layer_types)) == (2, 256, 2)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert tokenizer.chat_template
    assert model.dtype == torch.float32


def test_a_model_of_full_size_has_the_dtype_of_training(gpu_profile: Profile, base: Path) -> None:
    model, _ = empty_model(gpu_profile, base, full_size=True)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (3, 512)
    assert model.dtype == torch.bfloat16


def test_a_hubs_model_is_taught_for_longer_than_a_pretrained_one(
    gpu_profile: Profile, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[int] = []

    (base / "src").symlink_to(ROOT / "src")
    monkeypatch.chdir(base)
    monkeypatch.setattr(small_model, "teach", lambda *arguments: taught.append(arguments[-1]))
    monkeypatch.setattr(small_model, "read_jsonl", lambda *_: [])
    small_model.write_model(gpu_profile, base, full_size=False)
    assert taught == [small_model.HUB_STEPS]
    assert small_model.HUB_STEPS > small_model.STEPS
    assert (gpu_profile.models / "base" / "config.json").is_file()


@pytest.mark.slow
def test_the_teachers_answers_move_every_weight_and_become_more_likely(
    gpu_profile: Profile, base: Path
) -> None:
    model, tokenizer = empty_model(gpu_profile, base, full_size=False)
    before = [weight.clone() for weight in model.parameters()]
    messages = [("system", "Search."), ("user", "Who?"), ("assistant", "<answer> Ada</answer>")]
    trajectory = Trajectory.model_construct(
        messages=tuple(Message(role=role, content=text) for role, text in messages)
    )
    ids = tokenizer("<answer> Ada</answer>", return_tensors="pt").input_ids
    loss = model(input_ids=ids, labels=ids).loss.item()
    teach(model, tokenizer, FunctionCalling("Search."), [trajectory], steps=3)
    assert model(input_ids=ids, labels=ids).loss.item() < loss
    assert all(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )


def test_of_a_conversation_in_tags_the_model_learns_what_it_writes_and_no_passage(
    gpu_profile: Profile, base: Path
) -> None:
    _, tokenizer = empty_model(gpu_profile, base, full_size=False)
    protocol = SearchTags("Write <search> query </search>.")
    shown = protocol.notice("Doc 1(Title: Ada) Ada lives.")
    messages = [
        *protocol.opening("Who?"),
        protocol.search_turn("Ada", 1, "need name"),
        Message(role="tool", content=shown, tool_call_id="call_1"),
        Message(role="assistant", content="<answer> Ada</answer>"),
    ]
    tokens, labels = example_of(tokenizer, protocol, messages, 1)
    text = tokenizer.decode(tokens)
    assert text.index("Question: Who?") < text.index("<think>need name</think>") < text.index(shown)
    learnt = tokenizer.decode([token for token in labels.tolist() if token != IGNORED])
    assert learnt == "<think>need name</think>\n<search>Ada</search><answer> Ada</answer>"
