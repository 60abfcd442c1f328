"""Merging an adapter into its base, with a proof that the merged model is the trained one.

    python -m deepsearch_rl.train.merge    (log-probabilities by a merged folder, in a process of its own)

The stage ``merge`` takes SFT's adapter, ``unsloth_merge`` RL's. Their environments differ
(``python.sft``, ``python.rl``), and so do their usual backends:

    swift      ``swift export --merge_lora`` of ms-swift, which trained the SFT adapter
    peft       adds the adapter to the base in the base's own 16- or 32-bit weights
    unsloth    does the same from its own loader (GPU), ``save_pretrained_merged(...,
               save_method="merged_16bit")``

None ever merges into a base that was loaded in 4 bits, although the adapter may have been trained
beside one: the rounding would be kept.

The proof: base and adapter, unmerged, answer a fixed set of prompts greedily, and the merged model
must give the tokens of these answers the same log-probabilities, up to rounding. It must also be
nearer to the unmerged model than to the base, so that a merge that lost a small adapter is found.
The merged folder is loaded in a new process, as every later reader loads it: Unsloth replaces
methods of transformers' classes (``models/llama.py``, ``pre_patch``) in its own.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import CheckFailedError, CommandError, ConfigError
from deepsearch_rl.core.files import atomic_directory, read_json, write_json
from deepsearch_rl.core.hardware import require_gpu
from deepsearch_rl.core.model_config import CONFIG
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.merge_config import QUESTIONS, MergeConfig
from deepsearch_rl.train.model_folder import (
    ADAPTER_FILES,
    complete_folder,
    require_files,
)
from deepsearch_rl.train.rl.agreement import is_start_model, served_share
from deepsearch_rl.train.swift import run_swift, swift_command


def merge_adapter(
    config: MergeConfig, start: Path, adapter: Path, work: Path, output: Path
) -> None:
    """Merge a PEFT folder into the model folder ``start``, check it, and write the whole folder at once.

    The log of ms-swift goes to ``work``.

    Raises:
        UnavailableError: params name a GPU and there is none.
        ArtifactError: ``start`` or ``adapter`` is not whole, or the merged folder would not serve.
        ConfigError: ``start`` holds quantized weights.
        CommandError: ``swift export``, or the process that loads the merged folder, failed.
        CheckFailedError: the merged model is another one than base and adapter; nothing is kept.
    """
    if config.device == "cuda":
        packages = {"swift": ["swift"], "peft": [], "unsloth": ["unsloth"]}
        require_gpu(f"a merge by {config.backend}", packages=packages[config.backend])
    require_files(start, [CONFIG])
    require_files(adapter, ADAPTER_FILES)

    if "quantization_config" in read_json(start / CONFIG):
        raise ConfigError(
            f"{start} holds quantized weights; merge into the 16-bit model that they were made from."
        )

    unmerged = answer_unmerged(config, start, adapter)
    # A merge that fails its proof leaves no folder.
    with atomic_directory(output) as partial:
        match config.backend:
            case "swift":
                _merge_by_swift(config, start, adapter, work / "swift.log", partial)
            case "peft":
                model: Any = PeftModel.from_pretrained(load_model(start, config), adapter)
                model.merge_and_unload().save_pretrained(partial)
            case "unsloth":
                _merge_by_unsloth(config, start, adapter, partial)

        complete_folder(start, partial, adapter)
        merged = logprobs_of_new_process(partial, config, unmerged.answers)
        require_trained_model(merged, unmerged.trained, unmerged.base, config.tolerance)


def _merge_by_swift(
    config: MergeConfig, start: Path, adapter: Path, log: Path, output: Path
) -> None:
    # Swift export makes the folder itself, and refuses one that exists
    output.rmdir()
    run_swift(swift_export_command(config, start, adapter, output), log)


def _merge_by_unsloth(config: MergeConfig, start: Path, adapter: Path, output: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="deepsearch-") as scratch:
        local = shutil.copytree(adapter, Path(scratch, "adapter"))

        # Unsloth loads the base that this file names.
        settings = read_json(local / ADAPTER_FILES[0])
        settings["base_model_name_or_path"] = str(start.resolve())
        write_json(local / ADAPTER_FILES[0], settings)

        loader = import_module("unsloth").FastLanguageModel
        model, tokenizer = loader.from_pretrained(**unsloth_load_arguments(local, config))
        model.save_pretrained_merged(tokenizer=tokenizer, **unsloth_save_arguments(output))


def swift_export_command(
    config: MergeConfig, start: Path, adapter: Path, output: Path
) -> list[str]:
    """Return the ``swift export --merge_lora`` call; ``output`` must not exist."""
    flags = {
        "model": start,
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


def unsloth_load_arguments(adapter: Path, config: MergeConfig) -> dict[str, Any]:
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


class AnswerTokens(NamedTuple):
    """A prompt and what a model wrote after it, as token ids."""

    prompt: list[int]
    tokens: list[int]


# Of the tokens of every answer, in nats
Logprobs = Sequence[list[float]]


@dataclass(frozen=True, slots=True)
class UnmergedAnswers:
    """What base and adapter answer, and how probable the tokens are for them and for the base alone."""

    answers: list[AnswerTokens]
    trained: Logprobs
    base: Logprobs


def load_model(folder: Path, config: MergeConfig) -> Any:
    """Return a model folder as transformers loads it, on the device and in the dtype of the merge."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, config.dtype))
    return model.to(config.device)


def answer_unmerged(config: MergeConfig, start: Path, adapter: Path) -> UnmergedAnswers:
    """Return the greedy answers of base and adapter to the fixed prompts; the model is let go of before the merge."""
    prompts = fixed_prompts(start, config.prompts)
    model: Any = PeftModel.from_pretrained(load_model(start, config), adapter)
    answers: list[AnswerTokens] = []
    for prompt, tokens in zip(
        prompts, greedy_answers(model, prompts, config.max_tokens), strict=True
    ):
        answers.append(AnswerTokens(prompt, tokens))

    trained = answer_logprobs(model, answers)
    with model.disable_adapter():
        base = answer_logprobs(model, answers)

    # The merge loads the model anew, perhaps in another process.
    del model
    torch.cuda.empty_cache()
    return UnmergedAnswers(answers, trained, base)


class LogprobsTask(Record):
    """What the process that loads a merged folder reads from its standard input."""

    folder: Path
    config: MergeConfig
    answers: list[AnswerTokens]
    output: Path = Field(description="JSON file for the log-probabilities of every answer's tokens")


def logprobs_of_new_process(
    folder: Path, config: MergeConfig, answers: Sequence[AnswerTokens]
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
            command = [sys.executable, "-P", "-m", "deepsearch_rl.train.merge"]
            process = guard.start(command, output=lines, settings=task.model_dump_json())

        problem = f"did not end within {config.check_timeout_s:g} s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            problem = f"ended with exit code {process.wait(config.check_timeout_s)}"
        if process.returncode == 0:
            return read_json(output)

        raise CommandError(
            "the merged model could not be checked, and is not kept: the process that loads it "
            f"{problem}. Its output ends:\n"
            f"{last_lines(log)}"
        )


def fixed_prompts(folder: Path, count: int) -> list[list[int]]:
    """Return the first ``count`` questions in a model's own chat template, with the search tool, as token ids."""
    conversations: list[list[dict[str, str]]] = []
    for question in QUESTIONS[:count]:
        conversations.append([{"role": "user", "content": question}])

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
            # The last token's logits would be of one that nobody wrote
            logits_SV = model.eval()(input_ids=ids_S[None, :-1]).logits[0]
        own_SV = logits_SV[len(prompt) - 1 :].float().log_softmax(dim=-1)
        logprobs.append(own_SV.gather(1, ids_S[len(prompt) :, None])[:, 0].tolist())

    return logprobs


def _padded(rows: Logprobs) -> torch.Tensor:
    """Return numbers of every answer's tokens, [B, S], NaN behind the shorter ones."""
    nested = torch.nested.nested_tensor(list(rows))
    return torch.nested.to_padded_tensor(nested, float("nan"))


def require_trained_model(
    merged: Logprobs, trained: Logprobs, base: Logprobs, tolerance: float
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
            "the merged model is not the unmerged one: the log-probabilities that they give to the "
            f"tokens of {len(trained)} answers differ by {difference:.2g} nats on average, and "
            f"tolerance (section merge or unsloth_merge of params) is {tolerance:g}. The merged "
            "model is not kept."
        )

    share, error = served_share(merged_BS, trained_BS, base_BS)

    if is_start_model(share, error):
        raise CheckFailedError(
            "the merged model is nearer to the base than to the trained model: its "
            f"log-probabilities have gone {share:.0%} (standard error {error:.0%}) of the way that "
            "the adapter makes. The merge lost the adapter or a part of it. The merged model is "
            "not kept."
        )


if __name__ == "__main__":
    request = LogprobsTask.model_validate_json(sys.stdin.read())
    write_json(
        request.output, answer_logprobs(load_model(request.folder, request.config), request.answers)
    )
