"""Observation, pure: caches, indexes, snapshots with revision and age. It authorises nothing."""
