"""`deepsearch`."""
