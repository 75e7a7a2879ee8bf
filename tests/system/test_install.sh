#!/usr/bin/env bash
# Programs outside of this tree can use the installed library: through pkg-config and find_package, shared and static,
# from C and from C++, and through dlopen. Argument: the build directory.
set -eu
build=$1
if ! grep -q '^LOCKSTEP_SANITIZE:[A-Z]*=$' "$build/CMakeCache.txt"; then
  echo "skipped: programs without the sanitizer cannot load a library that was built with one"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
# If another user has left a list of installed files, CMake cannot write its own there.
rm -f "$build/install_manifest.txt"
cmake --install "$build" --prefix "$prefix" >"$work/log" || { cat "$work/log"; exit 1; }
rm -f "$build/install_manifest.txt"

pc=$(find "$prefix" -name lockstep.pc)
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH=${pc%/*}
tools/check-symbols "$libdir"

# The call finds missing names of further libraries in a static link: every room is one object, so any call pulls in all
# of them.
cat >"$work/program.c" <<'END'
#include <lockstep/lockstep.h>
#include <stdio.h>
int main(void) {
    uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {0, 0}, out[4];
    lks_philox(counter, key, out);
    printf("%s %08x\n", lks_version(), (unsigned)out[0]);
    return 0;
}
END
{ cat "$work/program.c"; echo 'double zero() { return LKS_ZERO; }'; } >"$work/program.cc"
expected="$(sed -n 's/^project(.*VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt) 6627e8d5"

expect_output() { # program
  local got
  got=$("$1") || { echo "$1: exit status $?"; exit 1; }
  [ "$got" = "$expected" ] || { echo "$1: expected '$expected', got '$got'"; exit 1; }
}

read -ra cflags <<<"$(pkg-config --cflags lockstep)"
read -ra shared <<<"$(pkg-config --libs lockstep)"
# pkg-config lists what a static link needs. The linker would still prefer a shared library in the same directory.
static_libs=$(pkg-config --static --libs lockstep)
read -ra static <<<"${static_libs/-llockstep/-l:liblockstep.a}"
warnings=(-Wall -Wextra -Wpedantic -Werror)

cc -std=c11 "${warnings[@]}" "${cflags[@]}" "$work/program.c" -o "$work/c_shared" "${shared[@]}" "-Wl,-rpath,$libdir"
c++ -std=c++11 "${warnings[@]}" "${cflags[@]}" "$work/program.cc" -o "$work/cxx_shared" "${shared[@]}" "-Wl,-rpath,$libdir"
cc -std=c11 "${warnings[@]}" "${cflags[@]}" "$work/program.c" -o "$work/c_static" "${static[@]}"
c++ -std=c++11 "${warnings[@]}" "${cflags[@]}" "$work/program.cc" -o "$work/cxx_static" "${static[@]}"
for program in c_shared cxx_shared c_static cxx_static; do expect_output "$work/$program"; done
if ldd "$work/c_static" | grep -q liblockstep; then
  echo "the static link took the shared library"
  exit 1
fi

# A program that was not linked to the library opens it. It stays loaded: its text is read after dlclose.
cat >"$work/opens.c" <<'END'
#include <dlfcn.h>
#include <lockstep/lockstep.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
    __typeof__(lks_version) *version = dlsym(library, "lks_version");
    __typeof__(lks_error_text) *error_text = dlsym(library, "lks_error_text");
    __typeof__(lks_init) *init = dlsym(library, "lks_init");
    __typeof__(lks_all_reduce) *all_reduce = dlsym(library, "lks_all_reduce");
    __typeof__(lks_group_destroy) *group_destroy = dlsym(library, "lks_group_destroy");
    lks_group *group;
    float in = 3, sum = 0;
    if (all_reduce(NULL, &in, &sum, 1, LKS_F32, LKS_SUM, NULL) != LKS_ERR_ARGUMENT) return 2;
    if (strstr(error_text(), "all_reduce") == NULL) return 3;
    if (init(&group, NULL) != LKS_OK) return 4;
    if (all_reduce(group, &in, &sum, 1, LKS_F32, LKS_SUM, NULL) != LKS_OK || sum != in) return 5;
    group_destroy(group);
    const char *text = version();
    if (dlclose(library) != 0 || dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL) return 6;
    puts(text);
    return 0;
}
END
cc -std=gnu11 -Wall -Wextra -Werror "${cflags[@]}" "$work/opens.c" -o "$work/opens" -ldl
got=$(env -u GLIBC_TUNABLES "$work/opens" "$libdir/liblockstep.so") || { echo "opens: exit status $?"; exit 1; }
[ "$got" = "${expected% *}" ] || { echo "opens: expected '${expected% *}', got '$got'"; exit 1; }

mkdir "$work/project"
cat >"$work/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C CXX)
find_package(lockstep 0.1 REQUIRED)
foreach(suffix c cc)
  add_executable(${suffix}_shared ../program.${suffix})
  target_link_libraries(${suffix}_shared PRIVATE lockstep::lockstep)
  add_executable(${suffix}_static ../program.${suffix})
  target_link_libraries(${suffix}_static PRIVATE lockstep::lockstep_static)
endforeach()
END
{ cmake -S "$work/project" -B "$work/project/build" -DCMAKE_PREFIX_PATH="$prefix" &&
  cmake --build "$work/project/build"; } >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for program in c_shared cc_shared c_static cc_static; do expect_output "$work/project/build/$program"; done

# A project that contains this one uses the same names, and decides on optimisation. Directories may be absolute. Without
# a compiler for C++, what is for CUDA is left out.
mkdir "$work/outer"
cat >"$work/outer/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.18)
project(user LANGUAGES C)
add_subdirectory("$PWD" lockstep)
add_executable(c_shared ../program.c)
target_link_libraries(c_shared PRIVATE lockstep::lockstep)
add_executable(c_static ../program.c)
target_link_libraries(c_static PRIVATE lockstep::lockstep_static)
END
CXX=/nonexistent cmake -S "$work/outer" -B "$work/outer/build" -DLOCKSTEP_MPI=OFF -DCMAKE_INSTALL_LIBDIR=/a/lib \
  -DCMAKE_INSTALL_INCLUDEDIR=/an/include >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
has_line() { grep -qx -- "$2" "$1" || { echo "$1 lacks: $2"; exit 1; }; }
has_line "$work/outer/build/CMakeCache.txt" "CMAKE_BUILD_TYPE:STRING="
has_line "$work/outer/build/lockstep/lockstep.pc" "libdir=/a/lib"
has_line "$work/outer/build/lockstep/lockstep.pc" "includedir=/an/include"

# By itself, it is built with optimisation.
cmake -S . -B "$work/plain" -DLOCKSTEP_MPI=OFF -DLOCKSTEP_CUDA=OFF >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
has_line "$work/plain/CMakeCache.txt" "CMAKE_BUILD_TYPE:STRING=Release"

# What would damage the source tree or its build directory is refused. In a copy, because otherwise it would do so here.
mkdir "$work/copy"
cp CMakeLists.txt Makefile "$work/copy"
expect_refusal() { # text command...
  local text=$1
  shift
  if (cd "$work/copy" && "$@") >"$work/log" 2>&1 || ! grep -q "$text" "$work/log"; then
    echo "not refused: $*"
    cat "$work/log"
    exit 1
  fi
}
expect_refusal "A build here would overwrite the Makefile" cmake .
expect_refusal "PREFIX is empty" make --old-file=build install PREFIX=

# The command is linked to the static library, and finds its modules after a move.
if [ -x "$prefix/bin/lockstep" ]; then
  found=$(cd "$work" && PATH=$prefix/bin:$PATH lockstep info)
  for module in "$libdir"/lockstep/lockstep-mpi-*.so; do
    [ ! -e "$module" ] || grep -q "/${module##*/})" <<<"$found" || { echo "not found: $module"; echo "$found"; exit 1; }
  done
fi
echo "install: ok"

python3 tests/system/null_calls.py "$prefix/include" >"$work/nulls.c"
cc -std=gnu11 "${cflags[@]}" "$work/nulls.c" -o "$work/nulls" "${shared[@]}" "-Wl,-rpath,$libdir"
"$work/nulls" 2>/dev/null >"$work/log" || { echo "crashed where they were given NULL:"; cat "$work/log"; exit 1; }
[ "$(sed -n 's/ functions$//p' "$work/log")" -gt 200 ] || { cat "$work/log"; exit 1; }
