"""What tests of online searches share."""

from tests.search.online.loopback import endpoint

__all__ = ["endpoint"]
