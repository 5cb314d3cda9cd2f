"""What all tests share: one thread for each process in the libraries that take a thread per processor.

The arrays are tiny, and the test processes side by side (`make test JOBS=...`) already fill the processors: threads
that wait for one another only cost, torch's most of all. The simulator's own threads are the tests' business: whoever
tests them says how many.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch and numpy's BLAS; before either is imported
