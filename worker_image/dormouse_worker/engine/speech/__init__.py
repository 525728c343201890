"""Who computes next where passes read sound: windows in line, each with a place in the cache until it is done."""
