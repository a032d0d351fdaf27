"""Commitment, pure: admission, ledgers, bind, fencing, operation ids.

The only place where something becomes true. Start at authority.py.
"""
