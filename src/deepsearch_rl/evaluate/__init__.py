"""Scoring, evaluation runs, IFEval, tables, the report and explanations."""
