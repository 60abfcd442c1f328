import subprocess
import sys

import pytest

LOAD = """
import sys
from deepsearch_rl.core.left_out import UNUSED, leave_out
from deepsearch_rl.serving.chat_process import UNUSED_HERE, leave_out_compiler
leave_out((*UNUSED, *UNUSED_HERE))
leave_out_compiler()
import deepsearch_rl.serving.chat_server
print(*(name for name, module in sys.modules.items() if module is not None))
"""


@pytest.mark.slow
def test_the_server_loads_neither_a_compiler_nor_libraries_that_it_does_not_call() -> None:
    command = [sys.executable, "-c", LOAD]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    packages = {name.partition(".")[0] for name in output.split()}
    assert {"torch", "transformers", "fastapi"} <= packages
    unused = {"sklearn", "scipy", "pandas", "sympy", "PIL", "rich", "boto3", "peft"}
    assert not unused & packages
    assert "torch._inductor" not in output.split()
