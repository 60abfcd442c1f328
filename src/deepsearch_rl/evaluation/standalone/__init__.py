"""Evaluation outside of the graph: of a model against an index, of predictions of any system."""
