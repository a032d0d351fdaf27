"""Scheduling, pure: the queue, filters, scorers and binds. A wrong proposal costs one refusal."""
