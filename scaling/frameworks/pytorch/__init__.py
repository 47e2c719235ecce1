"""PyTorch's DistributedDataParallel, a parameter server on torch.distributed, and Horovod under it."""
