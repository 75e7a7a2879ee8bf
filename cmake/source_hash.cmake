# Writes a header with a hash of the library's sources, where it has changed:
# cmake -D PROJECT_SOURCE_DIR=DIR -D OUTPUT=FILE -P source_hash.cmake
cmake_minimum_required(VERSION 3.18)
include(${CMAKE_CURRENT_LIST_DIR}/hashed_sources.cmake)
foreach(file IN LISTS hashed_sources)
  file(SHA256 ${PROJECT_SOURCE_DIR}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 8 hash)
file(WRITE ${OUTPUT}.new "#define LKSI_SOURCE_HASH UINT32_C(0x${hash})\n")
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${OUTPUT}.new ${OUTPUT})
