"""The proof that a merged model is the trained one.

    python -m deepsearch_rl.train.merge_proof    (log-probabilities by a merged model)

The unmerged model, base and adapter, answers a fixed set of prompts greedily, and the merged one
must give the tokens of these answers the same log-probabilities, up to rounding. It must also be
nearer to the unmerged model than to the base, so that a merge which lost a small adapter is found.

The merged folder is loaded in a process of its own, as every later reader of it will: Unsloth
replaces methods of transformers' classes (``models/llama.py``, ``pre_patch``) by ones that only its
own instances have the attributes for.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from pydantic import Field
from transformers import AutoModelForCausalLM, AutoTokenizer

from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import CheckFailedError, CommandError
from deepsearch_rl.core.files import read_json, write_json
from deepsearch_rl.core.processes import ProcessGuard, last_lines
from deepsearch_rl.core.records import Record
from deepsearch_rl.train.merge_config import QUESTIONS, MergeConfig
from deepsearch_rl.train.served_share import is_start_model, served_share


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
            command = [sys.executable, "-P", "-m", "deepsearch_rl.train.merge_proof"]
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
