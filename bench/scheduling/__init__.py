"""A whole plane under load, for `bench/scheduler.py`: shapes, processes, and the measuring."""
