"""What a run takes."""
