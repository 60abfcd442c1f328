"""The F1 table: rows, intervals, differences, published scores beside them."""
