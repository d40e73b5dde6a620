"""From a checkpoint to a bundle: trace, rewrite the graph, reference the weights, write."""
