"""controller:events, and the recording of events."""
