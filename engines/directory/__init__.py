"""Engine directories: their content, how they were built, and whether they fit a node and a recipe.

In: a directory, a recipe, the node's facts. Out: a manifest, or findings with their cures. Builds nothing.
"""
