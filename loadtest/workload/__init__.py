"""`crossover bench`: one workload against one endpoint, and the ceiling of this client itself."""
