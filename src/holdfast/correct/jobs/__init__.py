"""Jobs and cron jobs: which runs there are, and their accounts."""
