"""Making room by stopping other work: which victims, and the plan that stops them."""
