"""The teacher's answers to the training questions."""
