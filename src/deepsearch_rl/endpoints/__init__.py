"""Asking an OpenAI-compatible endpoint: requests, pace, failures and whose they are, times."""
