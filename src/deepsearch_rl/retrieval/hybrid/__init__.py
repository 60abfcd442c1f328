"""A ranking learnt from questions with gold evidence: two retrievers' candidates, a few features, one weight each."""
