"""Scheduling under contention, one module for each part; `__main__.py` runs them."""
