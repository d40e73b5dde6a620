"""The families dlmc reads, one file each, and the table that lists them."""
