"""Tools for those who work on Holdfast itself; `make help` lists the ways in."""
