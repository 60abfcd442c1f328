"""Wikipedia of December 2018 in passages of 100 words, as Search-R1 and FlashRAG use it (21,015,324 of them).

A passage's first line is the title of its article in double quotes, which is kept: E5 was evaluated on that form.
The passages are chunks already (``chunk.passages``). ``wiki-18.jsonl.gz`` is a gzipped tar; reading streams it.
"""

from deepsearch_rl.corpora.flashrag import read_documents

__all__ = ["read_documents"]
