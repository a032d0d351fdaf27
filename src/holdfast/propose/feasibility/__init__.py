"""Which nodes can take a replica, cached from one decision to the next."""
