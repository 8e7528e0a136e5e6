"""Four real trained models, scanned by one command; see `__main__`."""
