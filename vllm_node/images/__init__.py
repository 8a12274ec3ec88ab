"""Images on the connected side and on their way: what a tag means, how it is locked, how it travels."""
