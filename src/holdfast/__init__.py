"""Holdfast, a scheduler control plane: observe, propose, commit, correct."""

__version__ = "0.3.0.dev0"
