"""Runs in a process that has a trainer: the scripts through its adapter, a JSON line for each.

python -m tests.environment.text_trainers_child ms_swift|skyrl FOLDER URL WORK
"""

import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from deepsearch_rl.chat.chat_format import ChatFormat, load_chat_format
from deepsearch_rl.chat.chat_messages import RETRIEVE_TOOL
from deepsearch_rl.core.errors import ConfigError
from tests.environment.params_of import write_params
from tests.environment.scripted import NEVER_FITS, QUESTION, SCRIPTS, Script

Line = dict[str, Any]


class SwiftEngine:
    """Stands in for ms-swift's vLLM engine: writes the script's turns after the tokens that it was given."""

    def __init__(self, script: Script, chat_format: ChatFormat) -> None:
        self._protocol: Any = importlib.import_module("swift.infer_engine.protocol")
        self._turns = iter(script.turn_ids(chat_format))
        self._chat_format = chat_format
        self._tools = None if script.tags else [RETRIEVE_TOOL]
        self.prompts: list[list[int]] = []

    async def infer_async(self, request: Any, config: Any) -> Any:
        opening = [message for message in request.messages if message["role"] != "assistant"]
        written = [message for message in request.messages if message["role"] == "assistant"]
        prompt = self._chat_format.prompt_ids(opening, self._tools)
        for message in written:
            prompt += message["content"]

        self.prompts.append(prompt)
        ids = next(self._turns)[: config.max_tokens]
        chosen = [{"logprob": -1.0} for _ in ids]
        message = self._protocol.ChatMessage("assistant", self._chat_format.tokenizer.decode(ids))
        choice = self._protocol.ChatCompletionResponseChoice(
            0, message, "stop", {"content": chosen}, ids
        )
        usage = self._protocol.UsageInfo(len(prompt), len(ids), len(prompt) + len(ids))
        return self._protocol.ChatCompletionResponse(
            "policy", [choice], usage, prompt_token_ids=prompt
        )


def ms_swift(script: Script, params: Path, folder: Path, url: str) -> Line:
    adapter: Any = importlib.import_module("deepsearch_rl.environment.adapters.ms_swift")
    played = {"params": str(params), "model": str(folder), "retrieval_url": url}
    played["question"] = QUESTION.model_dump_json()
    engine = SwiftEngine(script, load_chat_format(folder))
    scheduler = adapter.multi_turn.multi_turns["deepsearch"](infer_engine=engine)
    request = adapter.protocol.RolloutInferRequest(messages=[], data_dict={"deepsearch": played})
    output = asyncio.run(scheduler.run(request, adapter.protocol.RequestConfig()))
    reward = adapter.rewards.orms["deepsearch"]()([""], rollout_infos=[output.rollout_infos])
    stops = [
        name for name, value in output.rollout_infos.items() if name.startswith("stop_") and value
    ]
    return {
        "prompts": engine.prompts,
        "completion_ids": output.response_token_ids[0],
        "mask": output.response_loss_mask[0],
        "logprobs": output.rollout_logprobs[0],
        "reward": reward[0],
        "stop_reason": stops[0].removeprefix("stop_"),
        "text": output.messages[-1]["content"],
    }


def skyrl(script: Script, params: Path, folder: Path, url: str) -> Line:
    gym: Any = importlib.import_module("skyrl_gym")
    registration: Any = importlib.import_module("skyrl_gym.envs.registration")
    registration.registry.pop("deepsearch", None)
    adapter: Any = importlib.import_module("deepsearch_rl.environment.adapters.skyrl")
    sampling = SimpleNamespace(max_generate_length=script.config.max_tokens)
    generator = SimpleNamespace(
        batched=False,
        use_conversation_multi_turn=script.tags,
        chat_template_kwargs={"a": "b"},
        sampling_params=sampling,
    )
    refused: list[str] = []

    def refuse() -> None:
        try:
            adapter.register(generator, str(params), model=str(folder), retrieval_url=url)
        except ConfigError as error:
            refused.append(str(error))

    refuse()
    generator.use_conversation_multi_turn = not script.tags
    sampling.max_generate_length += 1
    refuse()
    sampling.max_generate_length -= 1
    adapter.register(generator, str(params), model=str(folder), retrieval_url=url)
    extras = {"extra_info": {"deepsearch_question": QUESTION.model_dump_json()}}
    environment = gym.make("deepsearch", env_config={}, extras=extras)
    messages, _ = environment.init([])
    observations: list[str] = []
    roles: list[str] = []
    chat_format = load_chat_format(folder)
    # As SkyRL's generator renders what init returns
    prompt = chat_format.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **generator.chat_template_kwargs
    )
    cut = gym.make("deepsearch", env_config={}, extras=extras)
    cut.init([])

    for ids in script.turn_ids(chat_format):
        # SkyRL hands a turn over as text, cut at its own limit of tokens
        text = str(chat_format.tokenizer.decode(ids[: script.config.max_tokens])).removesuffix(
            "<|im_end|>"
        )
        step = environment.step(text)
        observations += [message["content"] for message in step["observations"]]
        roles += [message["role"] for message in step["observations"]]
        if step["done"]:
            break
    return {
        "opening": messages,
        "prompt": prompt,
        "refused": refused,
        "observations": observations,
        "roles": roles,
        "reward": step["reward"],
        "stop_reason": step["metadata"]["stop_reason"],
        "metrics": environment.get_metrics(),
        "with_a_cut_one": importlib.import_module("skyrl_gym.metrics").aggregate_for_environment(
            "deepsearch", [environment.get_metrics(), cut.get_metrics()]
        ),
    }


PLAY: dict[str, Callable[[Script, Path, Path, str], Line]] = {
    "ms_swift": ms_swift,
    "skyrl": skyrl,
}


def lines(trainer: str, folder: Path, url: str, work: Path) -> Iterator[Line]:
    for number, script in enumerate(SCRIPTS):
        if script.name == NEVER_FITS:
            continue
        params = write_params(work / f"{number}.yaml", script)
        try:
            line = PLAY[trainer](script, params, folder, url)
        except Exception as error:  # noqa: BLE001 - the test compares it
            line = {"error": f"{type(error).__name__}: {error}"}
        yield {"name": script.name, **line}


def main(arguments: Sequence[str]) -> None:
    trainer, folder, url, work = arguments
    for line in lines(trainer, Path(folder), url, Path(work)):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
