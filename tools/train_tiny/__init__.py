"""The recipe of the tiny Wan: a synthetic world, and the training of all its parts on a CPU."""
