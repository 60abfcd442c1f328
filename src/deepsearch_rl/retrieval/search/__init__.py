"""An index opened for searching: its chunks, its retrievers, and how good each one is."""
