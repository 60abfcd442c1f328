"""What a run of a profile takes, before it starts: its sizes times slopes that were measured or are assumed."""
