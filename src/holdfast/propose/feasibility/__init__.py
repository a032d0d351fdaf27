"""Which nodes can take a replica, remembered from one decision to the next."""
