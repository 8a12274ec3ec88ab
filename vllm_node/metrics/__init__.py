"""What metrics there are, what of them a node has, and whether everything that asks for one can get it."""
