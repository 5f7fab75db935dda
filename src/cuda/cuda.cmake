# Kernels: every src/cuda/*.cu becomes images that are embedded in the program, by whatever toolkits are here:
#   "fat"            cubins of sm_75, sm_80, sm_90 and PTX for later cards, by an nvcc 12 or 13
#   "sm_90a"         of the files named *_90a.cu (warpgroup products): loaded on sm_90 alone, beside "fat"
#   "sm_70","ptx_70" the Volta cubin and its PTX, by an nvcc that still has sm_70 (11.8 to 12.9), or by NVRTC 12 from
#                    .venv-cuda70 (`tools/setup cuda70`, 68 MB)
# Neither gives a complete program that says, on a card, which code it lacks. Nothing of CUDA is linked.
enable_language(ASM)
set(LK_CUDA_ARCHS "75;80;90" CACHE STRING "architectures of the fat image")
set(LK_CUDA_FLAGS "-O3" "--std=c++17" "-I${CMAKE_SOURCE_DIR}/src")
file(GLOB CUDA_KERNELS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cu)
file(GLOB CUDA_HEADERS CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cuh ${CMAKE_SOURCE_DIR}/src/cuda/*.h
     ${CMAKE_SOURCE_DIR}/src/dev/*.h)

# A toolkit is an nvcc; what it can make is asked of itself.
find_program(LK_NVCC nvcc HINTS /usr/local/cuda/bin /usr/lib/nvidia-cuda-toolkit/bin)
file(GLOB LK_NVCC_OLD /usr/local/cuda-12*/bin/nvcc /usr/local/cuda-11.8/bin/nvcc /usr/lib/nvidia-cuda-toolkit/bin/nvcc)
set(LK_NVCC_FAT "")
set(LK_NVCC_70 "")
foreach(nvcc ${LK_NVCC} ${LK_NVCC_OLD})
    execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE codes ERROR_QUIET)
    if(codes MATCHES "sm_90" AND NOT LK_NVCC_FAT)
        set(LK_NVCC_FAT ${nvcc})
    endif()
    if(codes MATCHES "sm_70" AND NOT LK_NVCC_70)
        set(LK_NVCC_70 ${nvcc})
    endif()
endforeach()
file(GLOB LK_NVRTC ${CMAKE_SOURCE_DIR}/.venv-cuda70/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12)
set(GEN_TOOL ${CMAKE_SOURCE_DIR}/tools/cuda-image)

set(IMG_DIR ${CMAKE_BINARY_DIR}/cuda)
file(MAKE_DIRECTORY ${IMG_DIR})
set(IMAGES "")
foreach(cu ${CUDA_KERNELS})
    get_filename_component(name ${cu} NAME_WE)
    if(name MATCHES "_90a$")
        if(LK_NVCC_FAT)
            add_custom_command(OUTPUT ${IMG_DIR}/${name}.sm_90a DEPENDS ${cu} ${CUDA_HEADERS}
                COMMAND ${LK_NVCC_FAT} ${LK_CUDA_FLAGS} -gencode arch=compute_90a,code=sm_90a -fatbin
                        -o ${IMG_DIR}/${name}.sm_90a ${cu}
                COMMENT "nvcc ${name}.cu" VERBATIM)
            list(APPEND IMAGES ${IMG_DIR}/${name}.sm_90a)
        endif()
        continue()
    endif()
    if(LK_NVCC_FAT)
        set(gen "")
        foreach(a ${LK_CUDA_ARCHS})
            list(APPEND gen -gencode arch=compute_${a},code=sm_${a})
            set(last ${a})
        endforeach()
        list(APPEND gen -gencode arch=compute_${last},code=compute_${last})
        add_custom_command(OUTPUT ${IMG_DIR}/${name}.fat DEPENDS ${cu} ${CUDA_HEADERS}
            COMMAND ${LK_NVCC_FAT} ${LK_CUDA_FLAGS} ${gen} --threads 0 -fatbin -o ${IMG_DIR}/${name}.fat ${cu}
            COMMENT "nvcc ${name}.cu" VERBATIM)
        list(APPEND IMAGES ${IMG_DIR}/${name}.fat)
    endif()
    if(LK_NVCC_70)
        add_custom_command(OUTPUT ${IMG_DIR}/${name}.sm_70 ${IMG_DIR}/${name}.ptx_70 DEPENDS ${cu} ${CUDA_HEADERS}
            COMMAND ${LK_NVCC_70} ${LK_CUDA_FLAGS} -arch=sm_70 -cubin -o ${IMG_DIR}/${name}.sm_70 ${cu}
            COMMAND ${LK_NVCC_70} ${LK_CUDA_FLAGS} -arch=compute_70 -ptx -o ${IMG_DIR}/${name}.ptx_70 ${cu}
            COMMENT "nvcc ${name}.cu for sm_70" VERBATIM)
        list(APPEND IMAGES ${IMG_DIR}/${name}.sm_70 ${IMG_DIR}/${name}.ptx_70)
    elseif(LK_NVRTC)
        add_custom_command(OUTPUT ${IMG_DIR}/${name}.sm_70 ${IMG_DIR}/${name}.ptx_70
            DEPENDS ${cu} ${CUDA_HEADERS} ${GEN_TOOL}
            COMMAND ${GEN_TOOL} nvrtc ${LK_NVRTC} ${CMAKE_SOURCE_DIR}/src ${cu} ${IMG_DIR}/${name}
            COMMENT "nvrtc ${name}.cu for sm_70" VERBATIM)
        list(APPEND IMAGES ${IMG_DIR}/${name}.sm_70 ${IMG_DIR}/${name}.ptx_70)
    endif()
endforeach()
if(NOT LK_NVCC_FAT)
    message(STATUS "CUDA: no nvcc 12 or 13 here: no code for sm_75 and up")
endif()
if(NOT LK_NVCC_70 AND NOT LK_NVRTC)
    message(STATUS "CUDA: no compiler for sm_70 here: `tools/setup cuda70` brings one")
endif()

add_custom_command(OUTPUT ${IMG_DIR}/images.S ${IMG_DIR}/images.c DEPENDS ${IMAGES} ${GEN_TOOL}
    COMMAND ${GEN_TOOL} embed ${IMG_DIR} ${IMAGES} COMMENT "embedding the kernels" VERBATIM)
target_sources(laoka_lib PRIVATE ${IMG_DIR}/images.c ${IMG_DIR}/images.S)
set_source_files_properties(${IMG_DIR}/images.S PROPERTIES OBJECT_DEPENDS "${IMAGES}")
