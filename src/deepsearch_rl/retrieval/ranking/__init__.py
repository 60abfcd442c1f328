"""Rankings, their fusion, and the gold evidence that they are scored by."""
