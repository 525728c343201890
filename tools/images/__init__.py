"""Build the three container images without a registry and hand them to a cluster.

Everything lives in DORMOUSE_CACHE/images, apart from the host's own container storage.
"""
