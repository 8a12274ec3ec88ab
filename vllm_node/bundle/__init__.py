"""A bundle: one folder with everything that a site without internet needs, which proves itself to be whole."""
