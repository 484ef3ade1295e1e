"""buffers."""
