"""controller:rollout: revisions, progress and rollback of services."""
