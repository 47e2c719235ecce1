# Builds the source of Horovod 0.28.1 against today's torch and TensorFlow. _horovod.py names this
# file in CMAKE_TOOLCHAIN_FILE, the one way into CMake that Horovod's setup.py leaves open: CMake reads it while
# it looks for the compiler, too early for what depends on the compiler or on targets. So this only asks for the
# second file, which CMake reads right after each project() command: Horovod's and that of the Gloo in it.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/horovod_project.cmake")

# NCCL from PyPI is no library that the system finds by itself. Seen from horovod/<framework>/ in site-packages,
# so that a wheel works in any environment; the frameworks need no path, they are in the process already.
set(CMAKE_BUILD_RPATH "$ORIGIN/../../nvidia/nccl/lib")
