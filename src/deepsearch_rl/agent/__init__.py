"""The search agent: prompts, the tool that it is given, and the loop that every model answers questions through."""
