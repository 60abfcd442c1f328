"""Merging adapters into their base: the SFT adapter by ms-swift, the RL adapter by PEFT or Unsloth, with a proof.

    python -m deepsearch_rl.training.merging.merge    (log-probabilities by a merged model, for merge_rl_adapter)

RL backends: ``peft`` adds the adapter to the base in the base's own 16- or 32-bit weights;
``unsloth`` (GPU) does the same from its own loader, ``save_pretrained_merged(...,
save_method="merged_16bit")``. Neither ever merges into a base that was loaded in 4 bits, although
the adapter may have been trained beside one: the rounded base would be kept.

The proof that the merged model is the trained one: the unmerged model, base and adapter, answers a
fixed set of prompts greedily, and the merged one must give the tokens of these answers the same
log-probabilities, up to rounding. It must also be nearer to the unmerged model than to the base, so
that a merge which lost a small adapter is found. The merged folder is loaded in a process of its
own, as every later reader of it will: Unsloth replaces methods of transformers' classes
(``models/llama.py``, ``pre_patch``) by ones that only its own instances have the attributes for.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from peft import PeftModel
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.conversation.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import CheckFailedError, CommandError, ConfigError
from deepsearch_rl.core.files import atomic_directory, read_json, write_json
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.core.records import NonEmpty, Record
from deepsearch_rl.training.runs.model_folder import (
    ADAPTER_FILES,
    CONFIG,
    complete_folder,
    require_files,
)
from deepsearch_rl.training.runs.served_share import is_start_model, served_share
from deepsearch_rl.training.runs.swift_run import run_swift, swift_command

QUESTIONS = (
    "Who directed the film?",
    "In which city was the founder of the company born?",
    "Which country is the capital of the region in?",
    "Did the two people found the same company?",
    "When was the bridge over the river opened?",
    "Who is the spouse of the person who wrote the novel?",
    "Which of the two films came out first?",
    "What is the name of the company that made the engine?",
)


class MergeConfig(Record):
    """Params section ``merge``."""

    device: Literal["cpu", "cuda"] = Field(description="where weights are added; never guessed")
    dtype: Literal["float32", "bfloat16"] = Field(description="of the merged weights")
    model_type: NonEmpty = Field(description="ms-swift's name of the architecture, e.g. qwen3")
    template: NonEmpty = Field(
        description="ms-swift's name of the chat template, e.g. qwen3_nothinking"
    )


def swift_export_command(config: MergeConfig, base: Path, adapter: Path, output: Path) -> list[str]:
    """Return the ``swift export --merge_lora`` call; ``output`` must not exist."""
    flags = {
        "model": base,
        "model_type": config.model_type,
        "template": config.template,
        "adapters": adapter,
        # All that swift would read from the adapter's args.json is given here
        "load_args": False,
        "merge_lora": True,
        "torch_dtype": config.dtype,
        "device_map": config.device,
        "output_dir": output,
    }
    return swift_command("export", flags)


def merge_adapter(config: MergeConfig, base: Path, adapter: Path, work: Path, output: Path) -> None:
    """Merge a PEFT folder into its base's model folder and write the whole folder at once; the log goes to ``work``.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: ``base`` or ``adapter`` is not whole, or the merged folder would not serve.
        CommandError: ``swift export`` failed.
    """
    if config.device == "cuda":
        require_gpu("merge", packages=["swift"])
    require_files(base, [CONFIG])
    require_files(adapter, ADAPTER_FILES)

    with atomic_directory(output) as partial:
        # Swift export makes the folder itself, and refuses one that exists
        partial.rmdir()
        run_swift(
            swift_export_command(config, base, adapter, partial), work / "merge" / "swift.log"
        )
        complete_folder(base, partial, adapter)


class AdapterMergeConfig(Record):
    """Params section ``unsloth_merge``."""

    backend: Literal["peft", "unsloth"]
    dtype: Literal["float32", "bfloat16"] = Field(
        description="of the base and of the merged weights"
    )
    max_sequence_tokens: int = Field(
        ge=1, description="context that unsloth prepares its model for"
    )
    prompts: int = Field(
        ge=1,
        le=len(QUESTIONS),
        description="fixed prompts that the unmerged model answers greedily",
    )
    max_tokens: int = Field(ge=1, description="longest of those answers")
    tolerance: float = Field(
        gt=0, description="mean difference of log-probabilities, nats, that rounding explains"
    )
    check_timeout_s: float = Field(
        gt=0, description="how long the merged model may take to load and answer"
    )


def unsloth_load_arguments(adapter: Path, config: AdapterMergeConfig) -> dict[str, Any]:
    """Return the keyword arguments of ``unsloth.FastLanguageModel.from_pretrained``."""
    return {
        "model_name": str(adapter),
        "max_seq_length": config.max_sequence_tokens,
        "dtype": getattr(torch, config.dtype),
        "load_in_4bit": False,
    }


def unsloth_save_arguments(folder: Path) -> dict[str, Any]:
    """Return the keyword arguments of the model's ``save_pretrained_merged``, without ``tokenizer``."""
    return {"save_directory": str(folder), "save_method": "merged_16bit"}


def merge_rl_adapter(config: AdapterMergeConfig, start: Path, adapter: Path, output: Path) -> None:
    """Merge an adapter into the model that RL started from, check, and write the whole model folder at once.

    Raises:
        UnavailableError: the backend is ``unsloth`` and there is no GPU.
        ArtifactError: ``start`` or ``adapter`` is not whole.
        ConfigError: ``start`` holds quantized weights.
        CheckFailedError: the merged model is another one than base and adapter; nothing is kept.
    """
    if config.backend == "unsloth":
        require_gpu("unsloth_merge with the unsloth backend", packages=["unsloth"])
    require_files(start, [CONFIG])
    require_files(adapter, ADAPTER_FILES)

    if "quantization_config" in read_json(start / CONFIG):
        raise ConfigError(
            f"{start} holds quantized weights; merge into the 16-bit model that they were made from."
        )

    prompts = fixed_prompts(start, config.prompts)
    unmerged: Any = PeftModel.from_pretrained(_load(start, config), adapter)
    answers: list[AnswerTokens] = []
    written_tokens = greedy_answers(unmerged, prompts, config.max_tokens)
    for prompt, tokens in zip(prompts, written_tokens, strict=True):
        answers.append(AnswerTokens(prompt, tokens))

    trained = answer_logprobs(unmerged, answers)
    with unmerged.disable_adapter():
        base = answer_logprobs(unmerged, answers)
    with atomic_directory(output) as partial:
        if config.backend == "unsloth":
            # Its memory is needed
            del unmerged
            with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch:
                local = shutil.copytree(adapter, Path(scratch, "adapter"))
                # Unsloth loads the base that this file names
                settings = read_json(local / ADAPTER_FILES[0])
                settings["base_model_name_or_path"] = str(start.resolve())
                write_json(local / ADAPTER_FILES[0], settings)
                loader = import_module("unsloth").FastLanguageModel
                model, tokenizer = loader.from_pretrained(**unsloth_load_arguments(local, config))
                model.save_pretrained_merged(tokenizer=tokenizer, **unsloth_save_arguments(partial))
        else:
            unmerged.merge_and_unload().save_pretrained(partial)

        complete_folder(start, partial, adapter)
        merged = logprobs_of_new_process(partial, config, answers)
        require_trained_model(merged, trained, base, config.tolerance)


def _load(folder: Path, config: AdapterMergeConfig) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, config.dtype))
    return model.to("cuda") if config.backend == "unsloth" else model


class AnswerTokens(NamedTuple):
    """A prompt and what a model wrote after it, as token ids."""

    prompt: list[int]
    tokens: list[int]


class LogprobsTask(Record):
    """What the process that loads a merged folder reads from its standard input."""

    folder: Path
    config: AdapterMergeConfig
    answers: list[AnswerTokens]
    output: Path = Field(description="JSON file for the log-probabilities of every answer's tokens")


def logprobs_of_new_process(
    folder: Path, config: AdapterMergeConfig, answers: Sequence[AnswerTokens]
) -> list[list[float]]:
    """Return :func:`answer_logprobs` of a model folder, loaded by plain transformers in a new process.

    Raises CommandError, with the process's last lines, if it failed or took longer than
    ``check_timeout_s``.
    """
    with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch, ProcessGuard() as guard:
        log = Path(scratch, "output.log")
        output = Path(scratch, "logprobs.json")
        task = LogprobsTask(
            folder=folder.absolute(), config=config, answers=list(answers), output=output
        )
        with log.open("w", encoding="utf-8") as lines:
            command = [sys.executable, "-P", "-m", "deepsearch_rl.training.merging.merge"]
            process = guard.start(command, output=lines, settings=task.model_dump_json())

        problem = f"did not end within {config.check_timeout_s:g} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            problem = f"ended with exit code {process.wait(config.check_timeout_s)}"
        if process.returncode == 0:
            return read_json(output)

        raise CommandError(
            f"the merged model could not be checked, and is not kept: the process that loads it {problem}. Its output "
            f"ends:\n{last_lines(log)}"
        )


def fixed_prompts(folder: Path, count: int) -> list[list[int]]:
    """Return the first ``count`` questions in a model's own chat template, with the search tool, as token ids."""
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS[:count]]
    return AutoTokenizer.from_pretrained(folder).apply_chat_template(
        conversations, tools=[RETRIEVE_TOOL], add_generation_prompt=True, return_dict=False
    )


def greedy_answers(model: Any, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the tokens that a ``transformers`` model writes after each prompt, one prompt at a time."""
    answers: list[list[int]] = []
    for prompt in prompts:
        ids_BS = torch.tensor([prompt], device=model.device)
        output_BS = model.eval().generate(
            input_ids=ids_BS,
            attention_mask=torch.ones_like(ids_BS),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=max_tokens,
        )
        answers.append(output_BS[0, len(prompt) :].tolist())

    return answers


def answer_logprobs(model: Any, answers: Sequence[AnswerTokens]) -> list[list[float]]:
    """Return the log-probability of every token of the answers, in nats; an answer at a time, so nothing is padded."""
    logprobs: list[list[float]] = []
    for prompt, tokens in answers:
        ids_S = torch.tensor([*prompt, *tokens], device=model.device)
        with torch.inference_mode():
            logits_SV = model.eval()(input_ids=ids_S[None, :-1]).logits[0]
        own_SV = logits_SV[len(prompt) - 1 :].float().log_softmax(dim=-1)
        logprobs.append(own_SV.gather(1, ids_S[len(prompt) :, None])[:, 0].tolist())

    return logprobs


def _padded(rows: Sequence[list[float]]) -> torch.Tensor:
    """Return numbers of every answer's tokens, [B, S], NaN behind the shorter ones."""
    nested = torch.nested.nested_tensor(list(rows))
    return torch.nested.to_padded_tensor(nested, float("nan"))


def require_trained_model(
    merged: Sequence[list[float]],
    trained: Sequence[list[float]],
    base: Sequence[list[float]],
    tolerance: float,
) -> None:
    """Check that the merged model finds answers as probable as the unmerged one (``trained``) does, token by token.

    All are log-probabilities of the same tokens. Raises CheckFailedError where the mean difference
    is above ``tolerance`` or NaN, or where the merged model is nearer to the base than to the
    trained model.
    """
    merged_BS = _padded(merged)
    trained_BS = _padded(trained)
    base_BS = _padded(base)
    difference = float((merged_BS - trained_BS).abs().nanmean())

    # Written so that NaN fails as well
    if not difference <= tolerance:
        raise CheckFailedError(
            "the merged model is not the unmerged one: the log-probabilities that they give to the tokens of "
            f"{len(trained)} answers differ by {difference:.2g} nats on average, and unsloth_merge.tolerance is "
            f"{tolerance:g}. The merged model is not kept."
        )

    share, error = served_share(merged_BS, trained_BS, base_BS)

    if is_start_model(share, error):
        raise CheckFailedError(
            f"the merged model is nearer to the base than to the trained model: its log-probabilities have gone "
            f"{share:.0%} (standard error {error:.0%}) of the way that the adapter makes. The merge lost the adapter "
            "or a part of it. The merged model is not kept."
        )


if __name__ == "__main__":
    request = LogprobsTask.model_validate_json(sys.stdin.read())
    write_json(
        request.output, answer_logprobs(_load(request.folder, request.config), request.answers)
    )
