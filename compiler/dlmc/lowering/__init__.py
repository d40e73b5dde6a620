"""From a bundle's graph to the graph a target builds: precision and quantization."""
