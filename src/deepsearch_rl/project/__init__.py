"""What lies around the graph: dvc.lock and DVC's cache, copies of the project, locked versions, proxies."""
