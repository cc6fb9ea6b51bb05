"""Pure logic: no IO, no Redis, no clock of its own."""
