"""A recorded sequence of operators made runnable as a whole."""
