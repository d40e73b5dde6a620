"""What packages run from: a model of Triton, an application of Ray Serve."""
