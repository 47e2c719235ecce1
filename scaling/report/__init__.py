"""Reports: a run's file as tables, pages and figures. The report reads only the records."""
