"""How a batch is cut into pieces for threads: by the size of the problem alone, never by the number of threads."""

from __future__ import annotations

# Below this many multiplications per chunk, meeting at a barrier costs more than a second thread brings.
_LEAST_WORK = 1_200_000
_FEWEST_ROWS, _ENOUGH_ROWS = 16, 128
_MOST_CHUNKS = 16


def chunk_rows(batch: int, n_params: int) -> int:
    """Rows per chunk for a batch through networks with `n_params` parameters in all."""
    least = min(_ENOUGH_ROWS, max(_FEWEST_ROWS, -(-_LEAST_WORK // n_params)))
    chunks = min(_MOST_CHUNKS, max(1, batch // least))
    return -(-batch // chunks)


def n_chunks(batch: int, n_params: int) -> int:
    """Chunks that a batch is cut into."""
    return -(-batch // chunk_rows(batch, n_params))
