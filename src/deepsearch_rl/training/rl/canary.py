"""The proof that the served policy is the one just trained.

The server answers a fixed prompt greedily and reports the log-probability of every token; the trainer scores the same
tokens after the same prompt. The two must agree. They differ if the server still has the weights of an older step, if
the two render prompts differently, or if sampling settings bend the distribution.
"""

from dataclasses import dataclass

from transformers import AutoTokenizer

from deepsearch_rl.agent.prompts import load_prompt
from deepsearch_rl.agent.tool import RETRIEVE_TOOL
from deepsearch_rl.errors import StalePolicyError
from deepsearch_rl.training.rl.config import CanaryConfig
from deepsearch_rl.training.rl.trainer import RlTask, RlTrainer


@dataclass(frozen=True, slots=True)
class Canary:
    """A fixed conversation and its tokens in the policy's chat template."""

    messages: list[dict[str, str]]
    prompt_ids: list[int]
    config: CanaryConfig

    async def check(self, trainer: RlTrainer, step: int) -> float:
        """Return the largest difference between the server's and the trainer's log-probabilities.

        Raises:
            StalePolicyError: it exceeds the tolerance.
            EndpointError: the server does not answer.
        """
        sampled = await trainer.sample_greedily(self.messages, self.config.max_tokens)
        scores = await trainer.logprobs([*self.prompt_ids, *sampled.token_ids])
        trained = scores[-len(sampled.token_ids) :]
        difference = max(abs(ours - theirs) for ours, theirs in zip(sampled.logprobs, trained, strict=True))
        if difference > self.config.tolerance:
            raise StalePolicyError(
                f"the model server does not serve the policy of step {step} that was just trained: log-probabilities "
                f"of the canary prompt differ by {difference:.2g}, more than {self.config.tolerance:g}. Nothing of "
                "this step was kept; check that the server took over the new weights and renders prompts as the "
                "trainer does."
            )
        return difference


def make_canary(task: RlTask, config: CanaryConfig) -> Canary:
    """Return the first dev question after the agent's system prompt, rendered with the start model's tokenizer."""
    instruction = load_prompt(task.agent.prompt)
    messages = [{"role": "system", "content": instruction}, {"role": "user", "content": task.dev[0].question}]
    tokenizer = AutoTokenizer.from_pretrained(task.start)
    text = tokenizer.apply_chat_template(messages, tools=[RETRIEVE_TOOL], add_generation_prompt=True, tokenize=False)
    return Canary(messages, tokenizer(text, add_special_tokens=False)["input_ids"], config)
