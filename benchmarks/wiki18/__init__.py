"""What building an index over wiki-18 takes, measured at sizes that a small machine can hold."""
