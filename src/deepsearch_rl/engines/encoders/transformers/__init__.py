"""The encoder `transformers`: a sentence model, run by torch."""
