"""What an attention of ``sft.attention`` needs besides torch, and whether an interpreter can load it."""

import subprocess
from pathlib import Path

# What each attention imports. In place of flash_attn, transformers can fetch a built kernel from
# a hub when it loads the model (package ``kernels``). That does not count: whether there is one
# for this torch shows only then.
ATTENTION_PACKAGES = {
    "sdpa": (),
    "flash_attn": ("flash_attn",),
    "flash_attention_3": ("flash_attn_interface",),
}
ATTENTION_FIX = "build it there, or set sft.attention to sdpa and sft.packing to false"


def attention_problem(interpreter: Path, attention: str) -> str:
    """Return why an interpreter cannot load what an attention needs; empty where it can.

    The packages are imported in a process of their own: a flash attention that was built for
    another torch is installed, and does not load.
    """
    for name in ATTENTION_PACKAGES[attention]:
        command = [interpreter, "-c", f"import {name}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
            return f"{name} for sft.attention: {attention}, in python.sft ({reason})"

    return ""
