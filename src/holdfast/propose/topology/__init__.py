"""Affinity, anti-affinity and spread: counts per domain."""
