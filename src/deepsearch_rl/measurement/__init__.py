"""How good and how fast an index is; no stage imports this."""
