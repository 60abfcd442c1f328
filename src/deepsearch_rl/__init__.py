"""Train a small language model to answer multi-hop questions by calling a search tool."""

import time

__version__ = "0.1.0"
# When this process began to load the package, in seconds since 1970
LOADED = time.time()
