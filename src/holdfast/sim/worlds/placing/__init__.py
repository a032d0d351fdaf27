"""Schedulers that compete for the capacity of one plane, under faults.

One to three production schedulers, each with a scope of its own or standing by on a shared one, ask
two production servers to bind replicas to many nodes. Controllers are the product's as well; nodes
are hollow: they accept and run at once, so that this world is about placement alone.
"""
