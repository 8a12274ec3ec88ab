"""The fit plan: whether a model, with its settings, fits the GPUs that it is given, before anything is started."""
