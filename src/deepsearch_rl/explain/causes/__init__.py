"""Where the points of runs are lost, and what could be reached: a cause for every answer, with the evidence for it."""
