"""Why a score is what it is: where the points of a run are lost, what could be reached, what differs from others."""
