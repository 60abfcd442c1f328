"""RL with ART: the project's own service, or Unsloth."""
