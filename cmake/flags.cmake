# Compiler and linker flags for every target of the project.
# -ffp-contract=off: the simulator's outputs and the reference kernels must not depend on what the
# compiler fuses; kernels that want FMA ask for it with an intrinsic.
add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off
                    -fno-omit-frame-pointer -ffunction-sections -fdata-sections)
# Base ISA of everything that is not a kernel; kernels choose by file name (cmake/folders.cmake).
add_compile_options(-march=x86-64-v2)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")

find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()
add_link_options(-Wl,--gc-sections)
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

set(FATHOM_KERNEL_OPTIONS -O3)
if(FATHOM_SANITIZE)
  add_compile_options(-fsanitize=${FATHOM_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FATHOM_SANITIZE})
  add_compile_definitions(FATHOM_SANITIZED=1)
  # Asio's fences: the sanitizer does not model them, and warns; the locks beside them it sees.
  if(FATHOM_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-tsan)
  endif()
  # Compiling takes longer than running here; unrolled kernels most of all.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  set(FATHOM_KERNEL_OPTIONS -DFATHOM_UNROLL=)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang builds the fuzz targets only. g++ is the compiler whose warnings are errors; clang also warns of what
  # libstdc++ 12 does inside std::stable_sort, and of the names of g++'s warnings.
  add_compile_options(-Wno-error -Wno-deprecated-declarations -Wno-unknown-warning-option)
endif()
if(FATHOM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED)
# Wanted by tests and benchmarks only: a machine that just serves builds without them.
find_package(GTest QUIET)
find_library(RAPIDCHECK_LIB rapidcheck)
find_package(benchmark QUIET)
find_package(prometheus-cpp REQUIRED)
find_package(CURL REQUIRED)
find_library(NUMA_LIB numa REQUIRED)
