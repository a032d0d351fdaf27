"""controller:rollout: revisions, progress and roll-back of services."""
