"""TensorFlow's strategies for several workers, its parameter server, and Horovod under it."""
