"""Answers to many questions at once, logged as they come, and the setting that they are made in."""
