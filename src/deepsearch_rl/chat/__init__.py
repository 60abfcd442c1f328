"""Messages, thoughts, chat templates and the client of model endpoints."""
