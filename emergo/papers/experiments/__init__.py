"""Our own experiments; their ids start with `emergo/`."""
