"""Worlds that ship with the product, each a package: who lives in it, what is checked,
its scenario.
"""
