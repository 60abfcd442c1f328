"""What `deepsearch explain` has beside the report: runs of other systems, published rows, a page with examples."""
