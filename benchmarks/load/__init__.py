"""What benchmarks and tests of servers share: load, hostile requests, a server process and its vital signs."""
