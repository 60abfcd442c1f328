"""IFEval: prompts with instructions that a program can check."""
