"""What tests of online searches share."""

from tests.retrieval.online.loopback import endpoint

__all__ = ["endpoint"]
