"""How a batch is cut into pieces for threads: by the size of the problem alone, never by the number of threads."""

from __future__ import annotations

# Below this many multiplications per chunk, meeting at a barrier costs more than a second thread brings.
LEAST_WORK = 1_200_000
# Every chunk has a gradient of its own, which is written and added up whatever its rows, and a matrix product of few
# rows spends its time rearranging weights: 16 rows at a time take 1.7 times as long as 128. Two chunks pay from the
# first number of rows each, more from the second.
_FEW_ROWS, ENOUGH_ROWS = 32, 128
MOST_CHUNKS = 16


def chunk_rows(batch: int, n_params: int) -> int:
    """Rows per chunk for a batch through networks with `n_params` parameters in all."""
    least = -(-LEAST_WORK // n_params)
    two = min(2, batch // max(_FEW_ROWS, least))
    chunks = min(MOST_CHUNKS, max(1, two, batch // max(ENOUGH_ROWS, least)))
    return -(-batch // chunks)


def n_chunks(batch: int, n_params: int) -> int:
    """Chunks that a batch is cut into."""
    return -(-batch // chunk_rows(batch, n_params))


def layout(sizes: dict[str, int], end: str) -> dict[str, int]:
    """Where parts of `sizes` floats start, one after the other on multiples of 16; under `end`, where the last ends."""
    offsets, start = {}, 0
    for name, size in sizes.items():
        offsets[name] = start
        start += -(-size // 16) * 16
    return offsets | {end: start}
