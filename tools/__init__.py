"""Tools for the development of Holdfast; `make help` lists the targets that run them."""
