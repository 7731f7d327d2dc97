"""Reports: pages and pictures of what was tuned."""
