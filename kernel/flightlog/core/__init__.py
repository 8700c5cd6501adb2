"""The pure core: what the log means. No I/O, no clock, no randomness, no awaiting."""
