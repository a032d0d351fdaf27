"""Holdfast, a scheduler control plane: observe, propose, commit, correct."""

__version__ = "0.2.0"
