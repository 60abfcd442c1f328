"""The base model of a profile: trained from scratch in minutes (tiny), or a pinned snapshot of the hub (gpu).

The tiny base is a Qwen3 of about 650 thousand parameters. It plays the part that a pretrained instruct model plays at
full size: it knows the chat format, the search tool and the answer tags, it can read a passage and copy a name out of
it, and it uses search poorly (one call, then an answer). What is measured is what SFT and RL then add.
"""
