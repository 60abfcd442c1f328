"""LoRA adapters that are served beside their base, without a merge.

A model folder may hold an adapter as PEFT writes it, in place of whole weights: its
``adapter_config.json`` names the folder of the base, relative to the working directory. vLLM loads
both and adds the adapter to every product; the CPU engine's server adds it to the weights when it
starts. Prompts and templates are the base's.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field
from safetensors import SafetensorError, safe_open

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import file_digests, read_record, sha256_json
from deepsearch_rl.core.records import ForeignRecord, Text

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

# PEFT's, before a base's own names
PREFIX = "base_model.model."

# What vLLM takes as --max-lora-rank (``MaxLoRARanks`` in its config/lora.py)
SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class AdapterConfig(ForeignRecord):
    """What is read of PEFT's ``adapter_config.json``."""

    base_model_name_or_path: Text = ""
    peft_type: Text = ""
    # Adapters of other kinds than LoRA have none
    r: int | None = Field(default=None, ge=1)
    rank_pattern: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's folder, its base's and the largest rank among its matrices."""

    folder: Path
    base: Path
    rank: int


def served_rank(rank: int, name: str) -> int:
    """Return the smallest rank that vLLM can be started for and that holds the adapter ``name`` of rank ``rank``.

    Raises ConfigError if there is none.
    """
    for served in SERVED_RANKS:
        if served >= rank:
            return served

    raise ConfigError(
        f"{name} is of rank {rank}, and vLLM serves adapters up to rank {SERVED_RANKS[-1]}; train "
        "one of a lower rank, or evaluate this one merged into its base (unsloth_merge)."
    )


def read_adapter(folder: Path) -> Adapter | None:
    """Return the adapter of a folder that holds one, None for any other folder.

    Raises ArtifactError where it is no LoRA, its weights or its base are missing, or the weights
    are those of another model.
    """
    if not (folder / CONFIG).is_file():
        return None
    config = read_record(folder / CONFIG, AdapterConfig)
    if config.r is None:
        raise ArtifactError(
            f"{folder} holds an adapter of kind {config.peft_type!r} without a rank `r` in {CONFIG}, and only LoRA "
            "adapters are served; name a folder with the adapter merged into its base."
        )
    base = Path(config.base_model_name_or_path)

    for path in (folder / WEIGHTS, base / "config.json"):
        if not path.is_file():
            raise ArtifactError(
                f"{folder} holds an adapter of the base {config.base_model_name_or_path!r} (base_model_name_or_path in "
                f"{CONFIG}), and {path} does not exist; run the stage that makes it, or correct "
                "the base's folder."
            )

    # PEFT may give single matrices a rank of their own.
    ranks = [config.r, *(config.rank_pattern or {}).values()]
    adapter = Adapter(folder, base, max(ranks))
    _require_fit(adapter)
    return adapter


def tokenizer_folder(folder: Path) -> Path:
    """Return the folder whose tokenizer and chat template serve a model; raises as :func:`read_adapter`."""
    adapter = read_adapter(folder)
    return adapter.base if adapter else folder


def digest_weights(folder: Path) -> str:
    """Return the SHA-256 of a model folder, and of an adapter's base with it; raises as :func:`read_adapter`."""
    adapter = read_adapter(folder)
    files = file_digests(folder)
    return sha256_json([files, file_digests(adapter.base)] if adapter else files)


def _require_fit(adapter: Adapter) -> None:
    """Compare the shape of every low-rank pair with that of the base's matrix."""
    base: dict[str, list[int]] = {}
    for path in sorted(adapter.base.glob("*.safetensors")):
        base |= _shapes(path)

    pairs = _shapes(adapter.folder / WEIGHTS)

    for name, down in pairs.items():
        if not name.endswith(".lora_A.weight"):
            continue
        # B @ A is added to the matrix: rows of B by columns of A is its shape
        module = name.removesuffix(".lora_A.weight")
        matrix = f"{module.removeprefix(PREFIX)}.weight"
        expected = [pairs.get(f"{module}.lora_B.weight", [0])[0], down[-1]]

        if base.get(matrix) != expected:
            raise ArtifactError(
                f"the adapter in {adapter.folder} does not fit the weights in {adapter.base}: "
                f"{matrix} is {base.get(matrix, 'missing')} there and {expected} here; it was "
                "trained from another model."
            )


def _shapes(path: Path) -> dict[str, list[int]]:
    try:
        with safe_open(path, "numpy") as file:
            # No mapping
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ArtifactError(f"{path} is damaged; run the stage that makes it again.") from error
