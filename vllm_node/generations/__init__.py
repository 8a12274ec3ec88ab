"""The history of nodes: what ran when, what a failed upgrade went back to, and what that means for the inventory."""
