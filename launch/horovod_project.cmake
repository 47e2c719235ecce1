# Read after each project() of Horovod's build; see horovod.cmake.

# Horovod asks for C++14 (its CUDA kernels for C++11) by setting CMAKE_CXX_STANDARD itself, after anything that
# could be set here. torch's headers (and those of CUDA 13) need C++17: let 14 and 11 be spelled so.
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++17")
set(CMAKE_CUDA11_STANDARD_COMPILE_OPTION "-std=c++17")

# TensorFlow 2.14 moved the headers that xla_mpi_ops.cc includes. That file holds an optional path (ops inside
# XLA's clusters, off unless HOROVOD_ENABLE_XLA_OPS=1) and is empty for a TensorFlow before 2.6: say that it is
# 2.5, for this one file. Source properties can be set only once the target is there: at the end of the directory.
if(PROJECT_NAME STREQUAL "horovod")
  # Horovod opens the Gloo contexts of its process sets, of the global one too, at whatever address the host's name
  # has: the interface of HOROVOD_GLOO_IFACE is known to the first context alone. Compile a copy of that file in
  # which they take the interface of the first. scaling/frameworks/hvd.py looks for the message in the binding.
  function(scaling_hold_process_sets_to_the_interface)
    set(folder "${CMAKE_SOURCE_DIR}/horovod/common/gloo")
    file(READ "${folder}/gloo_context.cc" source)
    string(REPLACE
      "assert(global_context.IsEnabled());"
      "gloo_iface_ = global_context.gloo_iface_;\n  LOG(DEBUG) << \"Gloo of a process set is on interface \" << gloo_iface_;"
      held "${source}"
    )
    if(held STREQUAL source)
      message(FATAL_ERROR "gloo_context.cc is not that of Horovod 0.28.1")
    endif()
    file(WRITE "${CMAKE_BINARY_DIR}/gloo_context.cc" "${held}")
    foreach(binding tensorflow pytorch mxnet)
      if(TARGET ${binding})
        get_target_property(sources ${binding} SOURCES)
        list(TRANSFORM sources REPLACE "^${folder}/gloo_context.cc$" "${CMAKE_BINARY_DIR}/gloo_context.cc")
        set_target_properties(${binding} PROPERTIES SOURCES "${sources}")
        target_include_directories(${binding} PRIVATE "${folder}")
      endif()
    endforeach()
  endfunction()
  cmake_language(DEFER CALL scaling_hold_process_sets_to_the_interface)

  function(scaling_fit_to_tensorflow)
    if(TARGET tensorflow)
      set_source_files_properties(
        "${CMAKE_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc"
        TARGET_DIRECTORY tensorflow
        PROPERTIES COMPILE_OPTIONS "-UTENSORFLOW_VERSION;-DTENSORFLOW_VERSION=2005000000"
      )
    endif()
    # Without it the binding would be linked all the same, and not load: its symbols are resolved at once (-z now).
    if(TARGET tensorflow AND HAVE_CUDA)
      target_sources(tensorflow PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/horovod_stream.cc")
    endif()
  endfunction()
  cmake_language(DEFER CALL scaling_fit_to_tensorflow)
endif()
