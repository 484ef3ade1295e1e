"""Other libraries doing the jobs of `mileage bench`, each the way it is fastest.

`mileage bench --peers` finds this package in a clone and asks it for `PEERS`, who does which job, and for
`PeerLibraries`, the libraries of one interpreter. The modules that do the jobs run in that interpreter, which need not
have what mileage needs: they import the standard library, NumPy, one another, the inputs of the jobs, and a library
only where its arm is built.
"""

from __future__ import annotations

from .arms import PEERS
from .process import PeerLibraries, ProcessChannel

__all__ = ["PEERS", "PeerLibraries", "ProcessChannel"]
