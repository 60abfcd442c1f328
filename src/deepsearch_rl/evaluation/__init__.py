"""From finished rollouts to figures: scores with intervals, the F1 table, plots and the report page."""
