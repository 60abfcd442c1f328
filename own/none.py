"""No code. Section ``own`` of params names this file where a profile uses none of its user's (docs/own_code.md)."""
