"""MXNet's kvstores, and Horovod under it."""
