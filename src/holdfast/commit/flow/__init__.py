"""Flow control: request classes, fair queues, seats, rates and caps."""
