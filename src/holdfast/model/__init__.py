"""Nouns and rules, pure: kinds, quantities, lifecycle, what fits where, errors, wire format."""
