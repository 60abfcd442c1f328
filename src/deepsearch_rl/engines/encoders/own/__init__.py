"""An encoder of the user's own."""
