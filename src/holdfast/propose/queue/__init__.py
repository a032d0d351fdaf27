"""What waits to be placed, and what wakes it."""
