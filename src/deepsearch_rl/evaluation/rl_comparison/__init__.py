"""RL with several settings from one start: training, scores, a table and a page (`deepsearch rl compare`)."""
