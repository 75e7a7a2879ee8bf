# Writes a header with a hash of the library's sources, where it has changed:
# cmake -D SOURCE_DIR=DIR -D OUTPUT=FILE -P source_hash.cmake
cmake_minimum_required(VERSION 3.18)
file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/src/*.[ch] ${SOURCE_DIR}/src/*.cu ${SOURCE_DIR}/src/*.cuh
     ${SOURCE_DIR}/include/*.h)
list(FILTER files EXCLUDE REGEX "^src/cli/") # the command's own
list(SORT files)
foreach(file IN LISTS files)
  file(SHA256 ${SOURCE_DIR}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 8 hash)
file(WRITE ${OUTPUT}.new "#define LKSI_SOURCE_HASH UINT32_C(0x${hash})\n")
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${OUTPUT}.new ${OUTPUT})
