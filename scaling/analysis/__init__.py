"""Records in, what they mean out: rows, intervals, the breakdown of lost efficiency, comparisons, marks. Pure."""
