"""Ledgers of nodes, quotas and cohorts: charges, derived records, recounts."""
