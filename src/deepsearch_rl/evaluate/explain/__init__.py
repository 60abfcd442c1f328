"""Why points were lost."""
