"""The report of runs beside each other: what they measured, statistics, tables, plots, and the page that holds them."""
