"""Other people's engines behind our front: they speak `common.ipc`, and each runs under an interpreter of its own."""
