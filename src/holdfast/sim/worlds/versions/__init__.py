"""Planes with records that this version does not expect: damaged ones, and those of others.

`rot` damages single objects, `ledgers` damages ledgers that an operator recounts, `mixed` has
servers of two versions over one store, and `raised` raises the plane's format meanwhile.
"""
