"""Transitions of replicas, reservations and nodes, and who may make each."""
