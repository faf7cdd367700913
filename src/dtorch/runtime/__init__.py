"""Where operators run."""
