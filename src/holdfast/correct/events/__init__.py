"""controller:events, and what it records."""
