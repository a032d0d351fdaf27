"""Nouns and rules, pure: kinds, quantities, lifecycle, what fits where, transactions, errors, wire format."""
