"""Rings and sum trees behind the replay buffers."""
