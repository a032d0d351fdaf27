"""Affinity, anti-affinity and spread: counts per topology domain."""
