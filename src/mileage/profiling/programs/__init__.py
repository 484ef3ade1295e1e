"""Training programs of others, watched from within while they run: where their time goes, by their own lines."""
