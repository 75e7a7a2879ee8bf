# The library's sources, by a hash of which ranks tell whether they run the same: `hashed_sources`.
file(GLOB_RECURSE hashed_sources ${glob_flags} RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src/*.[ch]
     ${PROJECT_SOURCE_DIR}/src/*.cu ${PROJECT_SOURCE_DIR}/src/*.cuh ${PROJECT_SOURCE_DIR}/include/*.h)
list(FILTER hashed_sources EXCLUDE REGEX "^src/cli/") # the command's own
list(SORT hashed_sources)
