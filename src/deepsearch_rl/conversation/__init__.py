"""How a conversation, its tool, its prompt and its passages are written, and the digests of these."""
