"""Training: recipes, optimizers, and runs that survive being killed."""
