"""Models: what a folder must hold to be one, the manifest by which that is proven, and their way to the nodes."""
