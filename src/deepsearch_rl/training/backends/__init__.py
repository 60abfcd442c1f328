"""ART backends: where a policy is trained and served during reinforcement learning."""
