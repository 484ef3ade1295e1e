"""Projects that are built: what they are, how they are edited, and what must be equal between two builds."""
