"""Documents cut into chunks, by words, tokens or sentences."""
