"""Audit records and the chain that they form."""
