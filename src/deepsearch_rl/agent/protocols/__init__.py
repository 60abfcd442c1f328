"""How a model asks for searches and is shown their results: ``function_calling`` or ``search_tags``."""
