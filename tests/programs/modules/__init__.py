"""Library modules and optimizers: training, other forms of modules, modules made in a step."""
