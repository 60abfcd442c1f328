"""A base model from a folder: what is written, and which models are refused with one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.chat.prompts import load_chat_template
from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.model_config import context_limit, require_context
from deepsearch_rl.train.prepare_model import PrepareModelConfig, prepare_model

OURS = Path("src/deepsearch_rl/chat/chat_template.jinja").resolve()
WITHOUT_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    """A copy of the Llama that a test may damage."""
    copy = tmp_path / "llama"
    copy.mkdir()
    for file in llama.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def prepare(folder: Path, template: Path | None = OURS) -> Path:
    config = PrepareModelConfig(source="folder", path=folder, chat_template=template)
    base = folder.with_name("base")
    prepare_model(config, "tiny", 0, base)
    return base


def test_a_folder_becomes_the_base_with_the_template_that_params_name(folder: Path) -> None:
    base = prepare(folder)
    assert not (base / "optimizer.pt").exists()
    assert (base / "chat_template.jinja").read_text() == load_chat_template()
    assert (base / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()

    tokenizer = AutoTokenizer.from_pretrained(base)
    question = [{"role": "user", "content": "Who?"}]
    text = tokenizer.apply_chat_template(question, tools=[RETRIEVE_TOOL], tokenize=False)
    assert "Search the corpus for passages." in text
    # A turn of the template ends generation, as what ended it before still does
    model = AutoModelForCausalLM.from_pretrained(base)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, end]


def test_a_model_whose_own_template_has_tools_keeps_all_its_files(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(load_chat_template())
    end = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids("<|im_end|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    base = prepare(folder, None)
    for file in base.iterdir():
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name


def edit(file: str, **changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def rename(file: str, name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).rename(folder / name)


def write(file: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(text)


def lower_case(folder: Path) -> None:
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.normalizer = normalizers.Lowercase()
    backend.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rename("config.json", "adapter_config.json"), "no config.json.*merge it into its base"),
        (rename("model.safetensors", "pytorch_model.bin"), r"no weights.*save_pretrained"),
        (rename("model.safetensors", "model.gguf"), r"no weights.*gguf_file="),
        (write("model.safetensors", "version https://git-lfs"), "holds no weights.*git lfs pull"),
        (
            write("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}'),
            "lacks model-2.safetensors",
        ),
        (edit("config.json", architectures=["BertForMaskedLM"]), "no decoder.*ForCausalLM"),
        (edit("config.json", architectures=["T5ForConditionalGeneration"]), "no decoder"),
        (edit("config.json", quantization_config={"bits": 4}), "quantized.*16 or 32 bits"),
        (rename("tokenizer.json", "tokenizer.bpe"), "no tokenizer.json"),
        (lower_case, "tokenizer of .* does not give back its own text: 'A.*byte-level"),
    ],
)
def test_a_folder_that_is_no_usable_model_is_refused_in_one_sentence(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(ConfigError, match=message):
        prepare(folder)
    assert not folder.with_name("base").exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "has no chat template; name one.*prepare_model.chat_template"),
        (WITHOUT_TOOLS, "leaves out the tool and the tool's call.*prepare_model.chat_template"),
        ("{{ raise_exception('no tools') }}", "refuses.*no tools.*prepare_model.chat_template"),
        (
            load_chat_template().replace("<|im_end|>", "<end>"),
            "ends a turn with '<end>', which is no token",
        ),
    ],
)
def test_a_template_that_cannot_serve_an_agent_is_refused_with_the_field_that_names_another(
    folder: Path, template: str, message: str
) -> None:
    if template:
        (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=message):
        prepare(folder, None)


def test_a_path_that_is_not_there_is_named_with_its_field(folder: Path) -> None:
    with pytest.raises(ArtifactError, match=r"prepare_model\.path"):
        prepare(folder / "other")
    with pytest.raises(ArtifactError, match=r"prepare_model\.chat_template"):
        prepare(folder, folder / "other.jinja")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "folder"}, r"needs prepare_model\.path"),
        ({"source": "hub"}, r"needs prepare_model\.hub"),
        ({"source": "pretrain", "pretrain": {}, "chat_template": "a.jinja"}, "set it to null"),
    ],
)
def test_a_source_without_its_field_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrepareModelConfig.model_validate(fields)


def test_params_that_ask_for_more_than_the_positions_of_a_model_are_refused(folder: Path) -> None:
    require_context(folder, {"agent.context_tokens": 512})
    with pytest.raises(ConfigError, match=r"sft\.max_length is 513, and .*llama reads at most 512"):
        require_context(folder, {"agent.context_tokens": 512, "sft.max_length": 513})


def test_the_factor_of_yarn_lengthens_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert context_limit({"max_position_embeddings": 40960, "rope_scaling": yarn}) == 131072
    assert context_limit({"n_positions": 5}) is None
