"""Finding passages: indexes over a chunk file, the searcher that reads them, and the server that agents ask."""
