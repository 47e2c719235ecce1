"""From cells to the rows of a table, their notes, comparisons and costs."""
