"""Names of the model servers for params and commands; the module that starts them takes a second to load."""

from typing import Literal

ServingBackend = Literal["cpu", "vllm"]
