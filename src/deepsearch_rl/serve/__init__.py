"""The CPU model server, and how model servers are started."""
