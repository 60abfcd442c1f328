"""The process of the CPU model server does without half of the libraries that transformers loads."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

LOAD = """
import sys
from deepsearch_rl.core.left_out import UNUSED, leave_out, leave_out_package_scan
from deepsearch_rl.serve.chat_process import UNUSED_HERE, leave_out_compiler
leave_out((*UNUSED, *UNUSED_HERE))
leave_out_package_scan()
leave_out_compiler()
import torch
from transformers import AutoModelForCausalLM
import deepsearch_rl.serve.chat_server
from deepsearch_rl.serve.engine import Engine, SamplingParams

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
engine = Engine(model, slots=2, context_tokens=64)
print(*engine.generate([5, 6, 7], SamplingParams(0.0, 4, 0)).result(60).token_ids)
engine.close()
print(*(name for name, module in sys.modules.items() if module is not None))
"""


@pytest.mark.slow
def test_the_server_generates_without_a_compiler_and_libraries_that_it_does_not_call(
    policy_folder: Path,
) -> None:
    command = [sys.executable, "-c", LOAD, str(policy_folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answer, _, modules = output.partition("\n")
    assert [int(token) for token in answer.split()] == greedy_tokens(policy_folder, [5, 6, 7], 4)
    packages = {name.partition(".")[0] for name in modules.split()}
    assert {"torch", "transformers", "fastapi"} <= packages
    unused = {"sklearn", "scipy", "pandas", "PIL", "rich", "boto3", "peft"}
    assert not unused & packages
    assert "torch._inductor" not in modules.split()


def greedy_tokens(folder: Path, prompt: list[int], count: int) -> list[int]:
    """Return what transformers itself generates in this process, which has the compiler."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output_1S = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=count, temperature=None
    )
    return output_1S[0, len(prompt) :].tolist()
