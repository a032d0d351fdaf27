"""Simulated planes, built from a `Plane` and a list of traits.

`simulated_plane` has the plane while it is built and what its parts share; `components` has the
traits for its store, servers, schedulers, controllers, nodes and people, `invariants` those for its
checkers; `plane_scope` lets several planes share a world.
"""
