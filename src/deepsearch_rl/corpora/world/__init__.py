"""Generated multi-hop worlds: word lists, grammars, articles and questions."""
