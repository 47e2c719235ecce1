// Horovod 0.28.1's binding for TensorFlow declares this function and calls it where it is built with GPU operations.
// TensorFlow's libraries defined it until they took the stream's handle from the stream itself.
#include <cuda_runtime.h>

#include "xla/stream_executor/stream.h"

namespace stream_executor {
namespace gpu {

cudaStream_t AsGpuStreamValue(Stream* stream) {
  return static_cast<cudaStream_t>(stream->platform_specific_handle().stream);
}

}  // namespace gpu
}  // namespace stream_executor
