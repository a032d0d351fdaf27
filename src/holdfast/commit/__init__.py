"""Commit: admission, ledgers, bind, fencing and operation ids, without I/O.

Every change of the plane's state is decided here. Start at authority.py.
"""
