"""Identities, rights, roles, admission rules, and how long credentials live."""
