"""Observation: list+watch caches, indexes, snapshots with revision and age, work queues. It never authorises anything."""
