"""ART's Unsloth service with a canary. Apart from ``unsloth_art``, because it imports trl and megatron-core."""

import asyncio
from typing import Any

import torch
from art.dev.get_model_config import get_model_config
from art.dev.validate import validate_dedicated_config
from art.model import TrainableModel
from art.unsloth.service import UnslothService
from art.unsloth.train import UnslothTrainContext, gc_and_empty_cuda_cache


def make_service(model: TrainableModel[Any, Any], folder: str) -> "CanaryUnslothService":
    """The service that ``art.LocalBackend`` would make for ``model``, with the canary added."""
    config = get_model_config(base_model=model.base_model, output_dir=folder, config=model._internal_config)
    validate_dedicated_config(config)
    return CanaryUnslothService(model.name, model.base_model, config, folder)


class CanaryUnslothService(UnslothService):
    """Adds the trainer's own view of given tokens."""

    async def canary_logprobs(self, token_ids: list[int]) -> list[float]:
        """The trained policy's log-probabilities of all tokens but the first, computed apart from the server.

        One GPU holds either the server's weights or the trainer's, so the server sleeps meanwhile, as in training.
        """
        await self._sleep_runtime()
        gc_and_empty_cuda_cache()
        self._state.reload_to_gpu()
        try:
            return await asyncio.to_thread(_logprobs, self._state, token_ids)
        finally:
            self._state.offload_to_cpu()
            gc_and_empty_cuda_cache()
            await self._wake_runtime()


def _logprobs(state: UnslothTrainContext, token_ids: list[int]) -> list[float]:
    model = state.peft_model
    model.eval()
    tokens_S = torch.tensor(token_ids, device=model.device)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        logits_SV = model(input_ids=tokens_S[None]).logits[0, :-1].float()
    logprobs_S = logits_SV.log_softmax(dim=-1).gather(1, tokens_S[1:, None])[:, 0]
    return logprobs_S.tolist()
