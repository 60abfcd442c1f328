"""Building an index from chunks, and learning how its two halves are fused."""
