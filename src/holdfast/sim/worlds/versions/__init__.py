"""Planes whose records are not all what this version expects: damaged ones, and those of others.

`rot` damages single records, `mixed` has servers of two versions over one store.
"""
