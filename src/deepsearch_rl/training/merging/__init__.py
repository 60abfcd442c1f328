"""An adapter merged into its base, and the proof that it was."""
