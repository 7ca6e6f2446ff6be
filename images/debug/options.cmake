# Read by CMake at PyTorch's project() (CMAKE_PROJECT_INCLUDE): options that setup.py passes no environment variable for.

# The kernels in aten/src/ATen/native/cpu are compiled once for each kind of CPU. The plain one is enough to debug, and
# the other two are a quarter of all compilations. An answer that is there already is not asked of the compiler again.
if(NOT "$ENV{FAULTLAB_CPU_CAPABILITIES}" STREQUAL "all")
  foreach(lang C CXX)
    foreach(type AVX2 AVX512)
      foreach(flag 1 2 3)
        set(${lang}_HAS_${type}_${flag} FALSE CACHE INTERNAL "not wanted")
      endforeach()
    endforeach()
  endforeach()
endif()

# With the build type RelWithDebInfo: -lineinfo for nvcc, and no -G, which would turn optimisation off.
set(DEBUG_CUDA ON CACHE BOOL "line information for kernels")
