"""The report: page, plots and tables."""
