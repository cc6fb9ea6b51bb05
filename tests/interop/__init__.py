"""taskbull and BullMQ itself do the same things, and every key they leave is compared."""
