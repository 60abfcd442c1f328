"""Text encoders: from a text to a vector of length 1."""
