"""Schedulers that compete for the places of one plane, under faults.

One to three production schedulers, each free on a scope of its own or standing by on a shared one,
ask two production servers for places on many nodes. Controllers are the product's as well; nodes
are hollow: they accept and run at once, so that what is judged is the placing.
"""
