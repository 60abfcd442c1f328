"""What runs around a stage: its command line, its scratch folder, and the watch over its inputs."""
