"""Answers of one model to all question sets, with their controls."""
