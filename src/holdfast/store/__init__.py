"""A revisioned key-value store with compare-and-swap and watch: memory, SQLite, etcd. Start at contract.py."""
