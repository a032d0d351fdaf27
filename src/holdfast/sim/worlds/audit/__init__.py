"""Scribes over one store that loses answers, forgets history and is cut off: still one chain."""
