"""From a function's source to its execution graph, by abstract interpretation: nothing of the program is run."""
