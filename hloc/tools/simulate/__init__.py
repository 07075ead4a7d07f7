"""What a step of a module takes on a cluster of many devices: `hloc simulate`.

    told = simulate(module, {"data": 32, "model": 8}, find_cluster("dgx-h100"))
    told.timeline.exposed
"""
from hloc.tools.simulate.cluster import Cluster, cluster_names, find_cluster
from hloc.tools.simulate.shapes import Shape, mesh_shapes
from hloc.tools.simulate.simulation import Simulation, simulate

__all__ = ["Cluster", "Shape", "Simulation", "cluster_names", "find_cluster", "mesh_shapes", "simulate"]
