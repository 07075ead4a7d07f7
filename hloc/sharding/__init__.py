"""On which devices the parts of an array lie: annotations, meshes of devices, and what follows for each op."""
