"""`make preflight`: a profile's own stages on a small model and small data, before it costs hours."""
