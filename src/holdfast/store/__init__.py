"""A revisioned key-value store with compare-and-swap and watch. Start at contract.py."""
