"""Engine directories: what lies in one, how it came to be, and whether it fits a node and a recipe.

In: a directory, a recipe, the node's facts. Out: a manifest, or findings with their cures. Builds nothing.
"""
