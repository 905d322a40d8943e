"""Our small worlds, whose true safety is known."""
