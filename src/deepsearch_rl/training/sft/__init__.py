"""A LoRA on training rows, by ms-swift, and the choice of its checkpoint."""
