"""The client's part of metrics: what ranks logged, over ranks, as a table and as a chart."""
