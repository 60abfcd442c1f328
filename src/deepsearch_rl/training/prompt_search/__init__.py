"""A better system prompt, searched for with rollouts."""
