"""Where attempts run: beside each other on this machine, on a Ray cluster, or as jobs of Slurm."""
