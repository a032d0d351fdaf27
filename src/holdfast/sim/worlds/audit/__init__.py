"""Audit writers over one store that loses answers, drops history and is cut off keep one chain."""
