# The Volta kernels as a libcuda.so.1 for CPUs (simt.c), in BUILD/simt, and the op tests against it. Needs clang++ and an x86-64 with
# AVX2; nothing of CUDA. In a build without GPU code the host side of src/cuda is compiled for this test alone.
find_program(LK_CLANGXX clang++)
if(NOT LK_CLANGXX OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
    message(STATUS "no clang++ (or no x86-64) here: the Volta kernels are not run on the CPU")
    return()
endif()
if(LK_CUDA AND NOT LK_NVCC_70 AND NOT LK_NVRTC)
    message(STATUS "a GPU build without sm_70 (tools/setup cuda70 brings its compiler): the Volta kernels are not run on the CPU")
    return()
endif()
set(SIMT ${CMAKE_SOURCE_DIR}/tests/cuda/simt)
set(SIMT_DIR ${CMAKE_BINARY_DIR}/simt)
file(MAKE_DIRECTORY ${SIMT_DIR})
file(GLOB SIMT_HEADERS CONFIGURE_DEPENDS src/cuda/*.cuh src/cuda/*.h src/dev/*.h ${SIMT}/*.h)
file(GLOB SIMT_KERNELS CONFIGURE_DEPENDS src/cuda/*.cu)
list(FILTER SIMT_KERNELS EXCLUDE REGEX "(_90a|/comm)\\.cu$") # comm.cu waits for another card
set(SIMT_OBJECTS "")
foreach(cu ${SIMT_KERNELS})
    get_filename_component(name ${cu} NAME_WE)
    add_custom_command(OUTPUT ${SIMT_DIR}/${name}.o DEPENDS ${cu} ${SIMT_HEADERS} ${SIMT}/translate
        COMMAND ${SIMT}/translate ${LK_CLANGXX} ${CMAKE_SOURCE_DIR}/src ${cu} ${SIMT_DIR}/${name}.cc
        COMMAND ${LK_CLANGXX} -std=c++17 -nostdinc++ -I${SIMT} -O1 -g1 -fPIC -w -fno-strict-aliasing -fno-exceptions -fno-rtti
                -ffp-contract=off -mavx2 -mfma -mf16c -c ${SIMT_DIR}/${name}.cc -o ${SIMT_DIR}/${name}.o
        COMMENT "${name}.cu for the CPU" VERBATIM)
    list(APPEND SIMT_OBJECTS ${SIMT_DIR}/${name}.o)
endforeach()
add_custom_command(OUTPUT ${SIMT_DIR}/libcuda.so.1 DEPENDS ${SIMT}/simt.c ${SIMT_OBJECTS}
    COMMAND ${LK_CLANGXX} -x c -std=gnu17 -O2 -g1 -fPIC -c ${SIMT}/simt.c -o ${SIMT_DIR}/simt.o
    COMMAND ${LK_CLANGXX} -nodefaultlibs -shared -o ${SIMT_DIR}/libcuda.so.1 ${SIMT_DIR}/simt.o ${SIMT_OBJECTS} -lm -lc
    COMMENT "a libcuda that runs Volta code" VERBATIM)
add_custom_target(simt DEPENDS ${SIMT_DIR}/libcuda.so.1)

# The op tests with the device in them: a build with GPU code has that anyway.
if(LK_CUDA)
    set(SIMT_OPS test_ops)
else()
    file(GLOB SIMT_HOST CONFIGURE_DEPENDS src/cuda/*.c)
    add_executable(simt_ops EXCLUDE_FROM_ALL tests/ops/test_ops.c ${SIMT_HOST} ${SIMT}/images.c)
    target_include_directories(simt_ops PRIVATE tests)
    target_link_libraries(simt_ops PRIVATE laoka_lib)
    set(SIMT_OPS simt_ops)
endif()
add_test(NAME cuda/simt_build COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target simt ${SIMT_OPS})
set_tests_properties(cuda/simt_build PROPERTIES FIXTURES_SETUP simt TIMEOUT 1200)
foreach(only "attn i8" "attn bf16" edge "gdn record")
    string(REPLACE " " "_" name ${only})
    add_test(NAME cuda/simt_${name} COMMAND ${SIMT_OPS} --device cuda:0 --image sm_70 --only ${only})
    set_tests_properties(cuda/simt_${name} PROPERTIES FIXTURES_REQUIRED simt ENVIRONMENT "LD_LIBRARY_PATH=${SIMT_DIR}")
endforeach()
