"""Device memory: drivers that give it, arenas that lay it out."""
