"""The replicas that wait to be placed, and the events that wake them."""
