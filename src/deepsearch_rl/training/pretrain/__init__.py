"""The base model of a profile: a pinned snapshot of the hub (gpu), or a small Qwen3 trained from scratch in minutes.

The latter knows the chat format, the search tool and the answer tags, can read a passage and copy a
name out of it, and uses search poorly (one call, then an answer). What is measured is what SFT and
RL then add.
"""
