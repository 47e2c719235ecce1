"""From cells to the rows of a table, their notes, comparisons, costs and predictions."""
