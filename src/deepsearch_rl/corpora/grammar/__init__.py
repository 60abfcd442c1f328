"""Relations, names and sentences of the generated world."""
